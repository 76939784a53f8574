#!/usr/bin/env bash
# ctest: timeout=120 cost=20
# esper serve from the outside: what it gives, what it refuses, who is let in, and that nobody holds it up.
. "$SOURCE_DIR/tests/cli/common.sh"

refused 2 "--port wants a number from 1 to 65535, not '0'" serve --port 0
refused 2 "--port wants a number" serve --port 8600x
refused 2 "esper serve takes no --lr" serve --lr 0.1
refused 2 "'b' is too much" serve a b
esper serve --help
expect_code 0
expect_words out "--listen ADDRESS" "--port N"

mkdir empty
esper serve nowhere
if grep -q libmicrohttpd <<<"$err"; then
    expect_code 1
    expect_words err "this build has no web server" "apt-get install libmicrohttpd-dev" "esper report RUN"
    echo "skipped: this build has no libmicrohttpd"
    finish
fi
expect_code 1
expect_words err "nowhere: there is no such directory"
: >file
refused 2 "file is a file" serve file
refused 2 "--listen wants an address of this machine in numbers" serve empty --listen localhost
python=$(command -v /usr/bin/python3 || command -v python3) || {
    echo "skipped: there is no python3 here to ask the server with"
    finish
}

# Starts a server with these arguments: $server is its process, $url what it printed, $port.
serve() {
    : >serve.txt # what the last one printed is not to be taken for its words
    "$ESPER" serve "$@" >serve.txt 2>serve.err </dev/null &
    server=$!
    until grep -q '^stop' serve.txt || ! kill -0 $server 2>/dev/null; do
        sleep 0.02
    done
    url=$(sed -n 's/^open *//p' serve.txt)
    port=$(sed -E 's|^http://[^/]*:([0-9]+)/.*|\1|' <<<"$url")
    export SERVER=$server
}

leave() {
    kill -"${1:-INT}" $server
    wait $server
    expect_equal "exit status of the server" "$?" 0
    expect_equal "its standard error" "$(cat serve.err)" ""
}

client() {
    n_checks=$((n_checks + 1))
    local words
    words=$("$python" "$SOURCE_DIR/tests/serve/client.py" "$port" "$@" 2>&1) || bad "client.py $*" "$words"
}

# ---- runs: one to read, one with a name that means to do harm, a link to one outside, and a store that is none
mkdir -p all outside
esper grow synth "${small[@]}" --policy none --run-dir all/plain
expect_code 0
odd='all/<script>alert(1)<'$'\n''&"name'
cp -r all/plain "$odd"
cp -r all/plain outside/secret
ln -s ../outside/secret all/linked
mkdir all/damaged
echo "no store, and long enough to be looked at: $(seq 200)" >all/damaged/store.sqlite
contents() { # of all but the index
    find all outside -type f ! -name 'index.db*' -exec cksum {} + | sort
}
before=$(contents)

serve all
expect_words url "http://127.0.0.1:"
NAMES=$("$python" -c 'import json,sys; print(json.dumps(sys.argv[1:]))' plain "${odd#all/}") client data
client page
client refusals
client sizes
client live
"$ESPER" --version | grep -q sanitizers && export MOST_KB=65536 # they keep what was freed for a while
client crowds plain "$(is_brief && echo 40 || echo 200)" 3
n_epochs=6
"$ESPER" grow synth --threads 1 --batch 8 --blocks 2 --channels 2 --max-steps 60 --epochs $n_epochs --length epochs --policy none \
    --run-dir all/made >made.txt 2>&1 &
maker=$!
client follow made $n_epochs
wait $maker
expect_equal "exit status of the run that was watched" "$?" 0
rm -rf all/made
client slow
leave
expect_equal "what was served is what it was" "$(contents)" "$before"
expect_equal "besides the index" "$(cd all && echo index*)" index.db

# ---- from elsewhere
serve all --listen 0.0.0.0
expect_words url "?token="
client token "$url"
expect_equal "the token is printed once" "$(grep -c "${url#*token=}" serve.txt)" 1
serve_out=$(cat serve.txt)
expect_words serve_out "is not shown again"
leave TERM
finish
