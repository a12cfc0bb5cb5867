# Read by bash (BASH_ENV) before the script that starts Triton: that one names models to load, which only the control
# mode explicit takes. Headrace's mode is none, and so is Triton's here.
exec() {
  local words=()
  while [ $# -gt 0 ]; do
    if [ "$1" = --load-model ]; then shift; else words+=("$1"); fi
    shift
  done
  unset BASH_ENV
  builtin exec "${words[@]}"
}
