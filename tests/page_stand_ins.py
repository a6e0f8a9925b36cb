"""Programs that stand in for those which need a whole machine, in a page's shell.

Each says by its exit status whether what it was given is there: a unit, a target, an
extra, a class. Everything else that a page names is the real program.
"""

SYSTEMCTL = """
# Starts and stops what the test has named, as systemd would. Each unit must be one
# that we bring, or Mosquitto's.
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
# We are who we are.
[ "$1" != -u ] || shift 2
exec "$@"
"""

MAKE = """
# What it would do: the target is there, and so is each name that is set.
for word in "$@"; do
  case $word in *=*)
    grep -rqw "${word%%=*}" "$ROOT/Makefile" "$ROOT/image/build" \\
      || { echo "make knows no ${word%%=*}" >&2; exit 2; };;
  esac
done
exec /usr/bin/make -C "$ROOT" -n "$@"
"""

PIP = """
# Every extra that is asked for is one of ours.
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

SCP = """
# The file is there, and the folder on the other side is one of ours.
test -f "$1"
case $2 in *:*/var/gateway/updates/*.update) exit 0;; esac
echo "not ours: $2" >&2
exit 1
"""

SPARK_CLASS = """
# The class is in one of Spark's jars; nothing is started.
name=$(echo "$1" | tr . /)
jars=$(echo "$ROOT"/.venv/lib/python3*/site-packages/pyspark/jars)
grep -qlF "$name.class" "$jars"/spark-core*
"""

STAND_INS = {
    "systemctl": SYSTEMCTL,
    "sudo": SUDO,
    "make": MAKE,
    "pip": PIP,
    "python3": PYTHON3,
    "scp": SCP,
    "spark-class": SPARK_CLASS,
}
"""By name, each a script of bash."""
