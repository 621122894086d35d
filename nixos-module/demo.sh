# usage: boxmaker-demo [BXCTL-ARGUMENT]…
#
# Starts a llama-server and loopd, opens `bxctl chat` (or bxctl with the arguments given), and stops both at
# the end. The conversation lives in $BOXMAKER_HOME, or in ~/.local/state/boxmaker/demo, and goes on the next time.
# BOXMAKER_MODEL chooses another model (a GGUF file), BOXMAKER_CONTEXT the context's size in tokens (4096).
# shellcheck shell=bash

home=${BOXMAKER_HOME:-${XDG_STATE_HOME:-$HOME/.local/state}/boxmaker/demo}
model=${BOXMAKER_MODEL:-$SMALL_MODEL}
# llama-server computes on all threads until the slowest is done, so leave a core to everything else
cores=$(nproc)
threads=$((cores > 2 ? cores - 1 : 1))

# Each child has a process group of its own: Ctrl-C reaches bxctl, never the two servers.
set -m
server='' daemon='' run=''

# shellcheck disable=SC2317,SC2329  # called by the trap
stop() { # PID
    if [[ -n $1 ]]; then
        kill -TERM "$1" 2>/dev/null || true
        tail --pid="$1" -f /dev/null
    fi
}
# shellcheck disable=SC2317,SC2329
finish() {
    trap '' INT TERM HUP
    stop "$daemon"
    stop "$server"
    if [[ -n $run ]]; then rm -rf -- "$run"; fi
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
trap 'exit 129' HUP

umask 077
mkdir -p "$home/slots"
# sockets have short paths and belong to this run alone
run=$(mktemp -d "${XDG_RUNTIME_DIR:-/tmp}/boxmaker.XXXXXX")
cat >"$run/loopd.toml" <<END
[model]
slot_dir = '$home/slots'
END

echo "boxmaker-demo: the conversation and the logs are in $home" >&2
GGML_NO_BACKTRACE=1 llama-server -m "$model" --host "$run/llama.sock" -c "${BOXMAKER_CONTEXT:-4096}" -t "$threads" \
    -np 1 --no-kv-unified --cache-ram 0 --no-context-shift --cache-reuse 0 -b 512 --no-prefill-assistant \
    --slot-save-path "$home/slots" --slots --metrics </dev/null >"$home/llama-server.log" 2>&1 &
server=$!
loopd serve --config "$run/loopd.toml" --home "$home" --socket "$run/loopd.sock" \
    --model-url "unix:$run/llama.sock" </dev/null >"$home/loopd.log" 2>&1 &
daemon=$!
disown -a # or bash would announce their end

# loopd answers before the model is loaded, and makes a message wait for it
until [[ -S $run/loopd.sock ]]; do
    if ! kill -0 "$daemon" 2>/dev/null; then
        echo "boxmaker-demo: loopd ended:" >&2
        tail -n 15 "$home/loopd.log" >&2
        exit 1
    fi
    sleep 0.1
done
if ! kill -0 "$server" 2>/dev/null; then
    echo "boxmaker-demo: llama-server ended:" >&2
    tail -n 15 "$home/llama-server.log" >&2
    exit 1
fi

if (($# == 0)); then set -- chat; fi
status=0
BXCTL_SOCKET=$run/loopd.sock bxctl "$@" || status=$?
exit "$status"
