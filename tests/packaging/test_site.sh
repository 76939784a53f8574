#!/usr/bin/env bash
# ctest: timeout=300 cost=25 labels=noasan
# The documentation as a site: every link, heading and picture is there, as a parser of its own reads it; nothing of a page
# becomes code in a browser; what leads nowhere ends the build. Then it is read in a browser, where there is one.
. "$SOURCE_DIR/tests/cli/common.sh"
build=$SOURCE_DIR/packaging/site/build.py
here=$PWD

if ! command -v python3 >/dev/null || [ ! -f "$build" ] || [ ! -f "$SOURCE_DIR/README.md" ]; then
    echo "skipped: there is no python3, or no documentation, here"
    exit 77
fi
export PYTHONDONTWRITEBYTECODE=1 LC_ALL=C.UTF-8

site() { # FOLDER [SOURCE]
    last="packaging/site/build.py $*"
    python3 "$build" "$@" >out.txt 2>err.txt
    code=$?
    out=$(cat out.txt) err=$(cat err.txt)
}
check() { # FOLDER
    last="tests/packaging/check_site.py $1"
    out=$(python3 "$SOURCE_DIR/tests/packaging/check_site.py" "$1" 2>&1)
    code=$?
    err=
}

# ---- ours
site made
expect_code 0
expect_words out " pictures; open made/index.html"
check made
expect_code 0
echo "$out"
expect_equal "pages" "$(find made -maxdepth 1 -name '*.html' | wc -l)" "$(ls "$SOURCE_DIR"/{README,CONTRIBUTING,CHANGELOG}.md "$SOURCE_DIR"/docs/*.md | wc -l)"
site made # again, over the first
expect_code 0
site again
expect_equal "the same bytes" "$(diff -r made again)" ""
page=$(cat made/index.html)
expect_words page "<code>make help</code>" 'href="growing.html"' 'src="images/serve-run.png" width="'
mkdir -p mine && echo "thesis" >mine/thesis.txt
site mine
expect_code 1
expect_words err "no site of ours"
expect_equal "a folder of somebody's" "$(cat mine/thesis.txt)" "thesis"
expect_equal "left beside" "$(find . -maxdepth 1 -name '.site-*')" ""

# ---- a tree of little, to be spoiled
tree() {
    rm -rf tree
    mkdir -p tree/docs tree/include tree/web tree/examples
    cp "$SOURCE_DIR/include/esper.h" tree/include/
    cp "$SOURCE_DIR/web/icon.svg" tree/web/
    cp "$SOURCE_DIR/web/icon.svg" tree/docs/picture.svg
    printf '# Front\n\nSee [all](docs/README.md), [one](docs/one.md#second-heading).\n' >tree/README.md
    printf '# All\n\n| page | what |\n|---|---|\n| [one.md](one.md) | one |\n' >tree/docs/README.md
    printf '# One\n\n## Second heading\n\nText.\n' >tree/docs/one.md
}
tree
site small tree
expect_code 0
check small
expect_code 0

spoiled() { # WORDS TEXT: a page that ends the build
    tree
    printf '%b' "$2" >>tree/docs/one.md
    site spoiled tree
    expect_code 1
    expect_words err "docs/one.md:" "$1"
    expect_equal "$2: nothing is written" "$(ls -d spoiled 2>/dev/null)" ""
}
spoiled "leads nowhere" '\n[x](two.md)\n'
spoiled "has no heading for #third" '\n[x](#third)\n'
spoiled "has no heading for #nothing" '\n[x](../README.md#nothing)\n'
spoiled "there is no picture" '\n![x](x.png)\n'
spoiled "there is no picture" '\n![x](https://example.com/x.png)\n'
spoiled "only http" '\n[x](javascript:alert(1))\n'
spoiled "only http" '\n[x](JaVaScRiPt:alert(1))\n'
spoiled "only http" '\n[x](data:text/html,x)\n'
spoiled "only http" '\n[x](//example.com/x)\n'
spoiled "leads nowhere" '\n[x](../../../../../../../../etc/passwd)\n'
spoiled "leads nowhere" '\n[x](/etc/passwd)\n'
spoiled "not closed" '\n```sh\nls\n'
spoiled "a row of 1 cells" '\n| a | b |\n|---|---|\n| c |\n'

# ---- texts that mean ill: they are shown, and are nothing else
tree
evil='<img src=x onerror=alert(1)>'
cat >"tree/docs/one.md" <<END
# One $evil "quotes" & \`<script>alert(1)</script>\`

## Second heading

$evil <script>alert(1)</script> &lt;b&gt; **bold $evil** *thin* 2 * 3 * 4 snake_case_name \\*no\\* \`a*b\` \`\`a\`b\`\`

[words $evil](one.md#second-heading) [in [brackets] and \`]\`](one.md) [not a link] (one.md) [out](https://example.com/?a=1&b="2')
![a" onerror="alert(1)](picture.svg)

<div onclick="alert(1)">raw</div>

| a $evil | b |
|---|--:|
| \`x|y\` \\| z | </td></table><script>alert(1)</script> |

- one
  - two $evil

    \`\`\`sh
    echo '</code></pre><script>alert(1)</script>' # </span>
    \`\`\`
- three

    make "</pre>" # <b>

<!-- for writers: <script>alert(1)</script> -->
END
printf '\nlast \001 \033[31m \302\205 line\n' >>tree/docs/one.md
printf '# Odd\n' >'tree/docs/<img src=x onerror=alert(1)> "#?%41.md'
printf '# Scheme\n' >'tree/docs/javascript:alert(1).md'
printf '/* </code><script>alert(1)</script> */\n' >tree/examples/e.c
echo '[e](../examples/e.c)' >>tree/docs/one.md
site evil tree
expect_code 0
check evil
expect_code 0
echo "$out"
page=$(cat evil/one.html)
expect_words page '&lt;img src=x onerror=alert(1)&gt;' '<strong>bold &lt;img' '<em>thin</em>' '2 * 3 * 4' 'snake_case_name' '*no*' \
    '<code>a*b</code>' '<code>a`b</code>' 'alt="a&quot; onerror=&quot;alert(1)"' '&lt;div onclick=' '<code>x|y</code> | z' \
    '&lt;/table&gt;' '&lt;/code&gt;&lt;/pre&gt;' '>in [brackets] and <code>]</code></a>' '[not a link] (one.md)' \
    '<li><p>two &lt;img' '<td class="right">' 'href="https://example.com/?a=1&amp;b=&quot;2&#x27;"'
expect_no_word page "for writers"
expect_equal "signs that command" "$(LC_ALL=C grep -c "$(printf '[\001-\010\033]')" evil/one.html)" 0

# ---- two pages for one place
tree
printf '# Other\n' >tree/docs/pages.md
site twice tree
expect_code 1
expect_words err "would be written to pages.html"

site
expect_code 2
expect_words err "usage: build.py FOLDER"

# ---- in a browser
browser=$(command -v chromium || command -v chromium-browser)
if [ -n "$browser" ] && command -v node >/dev/null && [ -d "$SOURCE_DIR/web/node_modules/playwright-core" ]; then
    last="tests/packaging/site.mjs"
    out=$(BROWSER=$browser SITE=$here/made EVIL=$here/evil timeout 200 node "$SOURCE_DIR/tests/packaging/site.mjs" 2>&1)
    code=$?
    err=
    expect_code 0
    tail -n 1 <<<"$out"
else
    echo "skipped: no look at the site in a browser, as chromium, node or playwright-core (scripts/test-web --install) is not here"
fi
finish
