# Sourced by the ensure-* scripts: what they share about installing system packages. Not run by itself.
# Nothing is ever installed for a user who is not root, or where PENSTOCK_NO_INSTALL=1 is set.

can_install() {
    [ "${PENSTOCK_NO_INSTALL:-0}" != 1 ] && [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null
}

# has_candidate PACKAGE: apt knows a version of it that could be installed.
has_candidate() {
    apt-cache policy "$1" 2>/dev/null | grep -Eq '^  Candidate: [^(]'
}

refresh_package_lists() {
    DEBIAN_FRONTEND=noninteractive apt-get update -qq
}

install_packages() {
    printf '%s: installing %s with apt-get\n' "$(basename "$0")" "$*" >&2
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >&2
}
