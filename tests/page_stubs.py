"""Stubs of programs that need a whole machine, for a page's shell.

Each checks that its argument exists (a unit, a target, an extra, a class) and fails if
it does not. All other programs of a page are the real ones.
"""

SYSTEMCTL = """
# Starts and stops the units that the test has defined, as systemd would. Each unit
# must be one of ours, or Mosquitto's.
action=$1; shift
for unit in "$@"; do
  case $unit in -*|mosquitto) continue;; esac
  file=$unit; case $unit in *.*) ;; *) file=$unit.service;; esac
  case $unit in *@*) file=${unit%%@*}@.${unit##*.};; esac
  find "$ROOT/systemd" "$ROOT/image" -name "$file" | grep -q . \\
    || { echo "no unit $unit" >&2; exit 5; }
  test -e "$UNITS/$unit" || continue
  case $action in
    stop)
      kill "$(cat "$UNITS/$unit.pid")"
      tail --pid="$(cat "$UNITS/$unit.pid")" -f /dev/null;;
    start)
      bash -c "exec $(cat "$UNITS/$unit")" >> "$UNITS/$unit.log" 2>&1 &
      echo $! > "$UNITS/$unit.pid";;
  esac
  echo "$action $unit" >> "$UNITS/done"
done
"""

SUDO = """
# Runs the command as the current user.
[ "$1" != -u ] || shift 2
exec "$@"
"""

MAKE = """
# A dry run: the target and each variable that is set must exist.
for word in "$@"; do
  case $word in *=*)
    grep -rqw "${word%%=*}" "$ROOT/Makefile" "$ROOT/image/build" \\
      || { echo "no variable ${word%%=*}" >&2; exit 2; };;
  esac
done
exec /usr/bin/make -C "$ROOT" -n "$@"
"""

PIP = """
# Every requested extra must be one of ours.
for word in "$@"; do
  case $word in yamamori*)
    for extra in $(echo "$word" | tr -c 'a-z\\n' ' ' | cut -d ' ' -f 2-); do
      sed -n '/^\\[project.optional-dependencies/,/^\\[project.scripts/p' \\
        "$ROOT/pyproject.toml" | grep -q "^$extra = " \\
        || { echo "no extra $extra" >&2; exit 1; }
    done;;
  esac
done
"""

PYTHON3 = """
# An environment is a folder with pip and our commands; nothing is installed.
[ "$*" = "-m venv ${3-}" ] || exec /usr/bin/python3 "$@"
mkdir -p "$3/bin"
ln -s "$(dirname "$0")/pip" "$3/bin/pip"
sed -n '/^\\[project.scripts/,/^$/s/ = .*//p' "$ROOT/pyproject.toml" \\
  | while read -r name; do ln -s "$ROOT/.venv/bin/$name" "$3/bin/$name"; done
"""

APT = """
# Each package must be one of ours, and the action one of apt's.
case $1 in install|remove|purge) shift;; *) echo "no action $1" >&2; exit 100;; esac
for word in "$@"; do
  name=${word#./}
  case $name in
    -*) ;;
    yamamori-*)
      grep -qx "Package: ${name%%_*}" "$ROOT/debian/control" \\
        || { echo "no package $word" >&2; exit 100; };;
    *) grep -q "^$name " "$ROOT/service_runtime/programs.txt" \\
        || { echo "no package $word" >&2; exit 100; };;
  esac
done
"""

SCP = """
# The file must exist; it is copied below this machine's /tmp, as the other machine's.
test -f "$1"
case $2 in *:/tmp/*.update) cp "$1" "$UNITS/${2##*/}"; exit 0;; esac
echo "not ours: $2" >&2
exit 1
"""

SSH = """
# Checks `install`: the copied file, our user, and the folder of a gateway.
rights="-o yamamori -g yamamori -m 600"
case "$*" in
  "-t "*" sudo install $rights -t "*"/var/gateway/updates /tmp/"*) ;;
  *) echo "not ours: $*" >&2; exit 1;;
esac
test -f "$UNITS/$(basename "${@: -1}")"
"""

SPARK_CLASS = """
# The class must be in one of Spark's jars; nothing is started.
name=$(echo "$1" | tr . /)
jars=$(echo "$ROOT"/.venv/lib/python3*/site-packages/pyspark/jars)
grep -qlF "$name.class" "$jars"/spark-core*
"""

STUBS = {
    "systemctl": SYSTEMCTL,
    "sudo": SUDO,
    "make": MAKE,
    "apt": APT,
    "pip": PIP,
    "python3": PYTHON3,
    "scp": SCP,
    "ssh": SSH,
    "spark-class": SPARK_CLASS,
}
"""Bash scripts by the name of the program."""
