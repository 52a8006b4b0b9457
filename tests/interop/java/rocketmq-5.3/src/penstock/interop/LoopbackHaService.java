package penstock.interop;

import java.io.IOException;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.ha.DefaultHAService;

/** The store's own HA service, listening on loopback only; named in META-INF/service, where the store looks it up. */
public final class LoopbackHaService extends DefaultHAService {
    @Override
    public void init(DefaultMessageStore store) throws IOException {
        super.init(store);
        try {
            Loopback.pin(acceptSocketService);
        } catch (ReflectiveOperationException unpinned) {
            throw new IOException("cannot keep the HA listener on loopback", unpinned);
        }
    }
}
