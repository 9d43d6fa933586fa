#!/usr/bin/env bash
# The README in an empty Debian: its two commands in a clean clone, then the wheel without the clone, as a user without rights.
#
#   make root                          as root, on Debian with its package debootstrap; 26 minutes on two busy cores
#   SUITE=trixie make root             of another release
#   MIRROR=http://... make root        from another mirror than debootstrap's own
#   STEPS="run wheel" make root        less than all of: run test wheel
#
# The root is debootstrap's smallest one with the packages that the README names and nothing else. Each step is a tree of
# processes of its own with no capability, none to be had, and its own /tmp; what it started ends with it. The network is
# the machine's: pip needs its index, and what names the index (PIP_*, proxies) is passed on by environment. The last
# step serves without a network, on a loopback of its own.
set -euo pipefail

SUITE=${SUITE:-bookworm}
STEPS=${STEPS:-run test wheel}
PACKAGES=make,git,python3,python3-venv
UNPRIVILEGED=1000
PASSED_ON='PIP_INDEX_URL PIP_EXTRA_INDEX_URL PIP_CERT PIP_PROXY PIP_DEFAULT_TIMEOUT http_proxy https_proxy no_proxy'

fail() { echo "root: $*" >&2; exit 1; }

# Once more, in the namespaces of a step: what it needs of a container, then the command as the user.
if [ "${1:-}" = --inside ]; then
  root=$2 command=$3
  mount --bind "$root" "$root"
  mount -t proc proc "$root/proc"
  mount -t tmpfs -o mode=1777 tmpfs "$root/tmp"
  mkdir -p "$root/dev/shm" && mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"
  if [ "${NETWORK:-}" = none ]; then ip link set lo up; fi
  own=(HOME=/home/user PATH=/usr/local/bin:/usr/bin:/bin LANG=C.UTF-8)
  for name in $PASSED_ON; do [ -z "${!name:-}" ] || own+=("$name=${!name}"); done
  exec chroot "$root" setpriv --reuid "$UNPRIVILEGED" --regid "$UNPRIVILEGED" --clear-groups --no-new-privs \
    --bounding-set=-all --inh-caps=-all env -i "${own[@]}" bash -euo pipefail -c "$command"
fi

[ "$(id -u)" = 0 ] || fail "only root can make a root: sudo make root"
for program in debootstrap unshare setpriv ip git; do
  command -v "$program" >/dev/null || fail "there is no $program. Debian: apt-get install debootstrap util-linux iproute2 git"
done
clone=$(git -C "$(dirname "$0")" rev-parse --show-toplevel)
root=$(mktemp -d "${TMPDIR:-/tmp}/kvitals-root.XXXXXX")
trap 'rm -rf --one-file-system "$root"' EXIT
chmod 755 "$root"

# A command in the root, as the user. NETWORK=none: with nothing but a loopback.
inside() {
  local apart=(--mount --pid --ipc --fork --kill-child)
  if [ "${NETWORK:-}" = none ]; then apart+=(--net); fi
  unshare "${apart[@]}" "$BASH" "$0" --inside "$root" "$1"
}

began=$SECONDS
step() { printf '== %s (%d s in)\n' "$1" $((SECONDS - began)); }

# What a served incident must answer, asked by the root's own Python: the API's verdict, and the page.
served='
serve() {
  "$@" >/tmp/served.log 2>&1 & serving=$!
  python3 - $serving <<"PY" || { cat /tmp/served.log >&2; exit 1; }
import json, sys, time, urllib.request
def ask(url):
    with urllib.request.urlopen(url, timeout=10) as answer:
        return answer.read()
def ended(pid):
    with open(f"/proc/{pid}/stat") as stat:
        return stat.read().rpartition(")")[2].split()[0] == "Z"
began = time.monotonic()
while True:
    try:
        causes = json.loads(ask("http://127.0.0.1:9477/api/v1/findings"))["causes"]
        page = ask("http://127.0.0.1:8501/")
        if causes:
            break
    except OSError:
        pass
    if ended(sys.argv[1]):
        raise SystemExit("it ended, and said")
    if time.monotonic() - began > 300:
        raise SystemExit("no verdict and no page within 300 s; it said")
    time.sleep(0.5)
first = causes[0]["code"]
print(f"  served after {time.monotonic() - began:.0f} s: {first} from the API, {len(page)} bytes of page")
raise SystemExit(first != "KVC01" or b"<html" not in page)
PY
  kill -TERM $serving
  wait $serving || true
}'

step "$SUITE with ${PACKAGES//,/, }"
debootstrap --variant=minbase --include="$PACKAGES" "$SUITE" "$root" ${MIRROR:+"$MIRROR"} >"$root.log" 2>&1 ||
  { tail -n 20 "$root.log" >&2; rm -f "$root.log"; fail "debootstrap did not make a root"; }
rm -f "$root.log"
chroot "$root" useradd --create-home --uid "$UNPRIVILEGED" user
cp /etc/hosts "$root/etc/hosts"
if [ -n "${PIP_CERT:-}" ]; then install -D -m 644 "$PIP_CERT" "$root$PIP_CERT"; fi
git -c safe.directory='*' clone -q --no-hardlinks "$clone" "$root/home/user/kvitals"
chown -R "$UNPRIVILEGED:$UNPRIVILEGED" "$root/home/user"
echo "  $(inside 'python3 --version'), $(du -sm --exclude=home "$root" | cut -f1) MB, commit $(git -C "$clone" rev-parse --short HEAD)"

for one in $STEPS; do
  case $one in
    run)
      step 'make run'
      inside "$served
        cd ~/kvitals && serve make run"
      ;;
    test)
      step 'make test'
      inside 'cd ~/kvitals && make test'
      inside 'cd ~/kvitals && test -z "$(git status --porcelain)"' || fail "make test left something in the clone"
      ;;
    wheel)
      step 'the wheel, and the clone thrown away'
      inside 'cd ~/kvitals && python3 -m venv ~/build && ~/build/bin/pip wheel -q --no-deps -w ~/wheel . &&
        cp requirements-ui.lock ~/wheel/'
      rm -rf "$root/home/user/kvitals" "$root/home/user/build"
      inside 'cd ~/wheel && ls -s --block-size=K *.whl && python3 -m venv ~/own &&
        ~/own/bin/pip install -q --require-hashes -r requirements-ui.lock && ~/own/bin/pip install -q --no-deps ./*.whl'
      NETWORK=none inside "$served
        cd /tmp
        demo=\$(echo ~/own/lib/python3*/site-packages/kvitals/app/demo/few_slots.kvcap)
        ~/own/bin/kvitals triage \$demo >/tmp/said || [ \$? = 1 ]
        head -n 6 /tmp/said && grep -q SCH01 /tmp/said
        serve ~/own/bin/kvitals run --demo"
      ;;
    *) fail "no step is called $one; there are run, test, wheel" ;;
  esac
done
step 'all of it worked'
