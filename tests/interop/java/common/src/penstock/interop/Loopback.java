package penstock.interop;

import java.lang.reflect.Field;
import java.net.InetAddress;
import java.net.InetSocketAddress;

/**
 * Keeps the store's HA listener on the loopback interface.
 *
 * <p>Neither release lets the listen address be configured: the listener is bound to every interface. The address it
 * will bind is therefore replaced, before it binds, by loopback with a port the system chooses.
 */
final class Loopback {
    private Loopback() {
    }

    /** Replaces the listen address of an HA accept service that has not begun to accept. */
    static void pin(Object acceptService) throws ReflectiveOperationException {
        Field address = field(acceptService.getClass(), "socketAddressListen");
        address.set(acceptService, new InetSocketAddress(InetAddress.getLoopbackAddress(), 0));
    }

    /** Finds a field in a class or its parents, made accessible. */
    static Field field(Class<?> type, String name) throws NoSuchFieldException {
        for (Class<?> at = type; at != null; at = at.getSuperclass()) {
            try {
                Field found = at.getDeclaredField(name);
                found.setAccessible(true);
                return found;
            } catch (NoSuchFieldException absentHere) {
                // The parent may declare it.
            }
        }
        throw new NoSuchFieldException(name + " in " + type.getName());
    }
}
