#!/usr/bin/env bash
# ctest: timeout=300 cost=60 labels=soak,noasan
# Two hundred browsers watch a run for half a minute: none is dropped, the server does not grow, and what it takes of the processor
# is a small part of what the run has. Then ten such crowds come and go, and all of their memory is given back.
. "$SOURCE_DIR/tests/cli/common.sh"

python=$(command -v /usr/bin/python3 || command -v python3) || {
    echo "skipped: there is no python3 here to ask the server with"
    exit 77
}
mkdir all
"$ESPER" grow synth --threads 1 --batch 32 --blocks 2 --channels 8 --max-steps 100 --epochs 100000 --length epochs --policy none \
    --progress none --run-dir all/watched >run.txt 2>&1 &
run=$!
"$ESPER" serve all >serve.txt 2>serve.err &
server=$!
export SERVER=$server
until grep -q '^stop' serve.txt && [ -s all/watched/store.sqlite ] || ! kill -0 $server; do
    sleep 0.1
done
sleep 2
n_checks=1
port=$(sed -nE 's|^open *http://[^/]*:([0-9]+)/.*|\1|p' serve.txt)
words=$("$python" "$SOURCE_DIR/tests/serve/client.py" "$port" siege watched 200 "${SIEGE_SECONDS:-30}" 2>&1) || bad "siege" "$words"
echo "$words"
words=$("$python" "$SOURCE_DIR/tests/serve/client.py" "$port" crowds watched 200 10 2>&1) || bad "crowds" "$words"
echo "$words"
kill $run $server
wait $server
expect_equal "exit status of the server" "$?" 0
wait $run
finish
