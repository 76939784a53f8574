#!/usr/bin/env bash
# ctest: timeout=180 cost=6
# Hosts and blueprints as text, from the outside: what runs make of them, what they keep, and what is refused.
. "$SOURCE_DIR/tests/cli/common.sh"

few=(--threads 1 --batch 8 --max-steps 3 --epochs 2)

# ---- the text of a task's host is the host
esper train synth "${small[@]}" --run-dir by-settings
expect_code 0
settings=$(grep -o "weights [0-9a-f]*" <<<"$out")
esper info net synth --blocks 2 --channels 2 --text
expect_equal "the text" "$out" "conv 2 | pool | conv 4 | pool | mean | linear"
echo "$out" >copy.host
esper train synth --threads 1 --batch 8 --max-steps 5 --epochs 2 --host copy.host --run-dir by-text
expect_code 0
expect_equal "weights by text" "$(grep -o "weights [0-9a-f]*" <<<"$out")" "$settings"
expect_words out "conv 2 | pool | conv 4 | pool | mean | linear"

# ---- a file, its contents, and what becomes of the run when it changes
printf '# mine\nconv 3\npool\n[[conv 4]x2] residual\nmean\nlinear\n' >my.host
esper grow synth "${few[@]}" --epochs 6 --policy random --gates permissive --gate-epochs 1 --host my.host --run-dir grown
expect_code 0
esper replay grown
expect_code 0
expect_words out "weights equal"
esper eval grown
expect_code 0
esper export grown --torch out
expect_code 0
record=$(cat grown/config.ini)
expect_words record "host = conv 3 | pool | [[conv 4]x2] residual | mean | linear"
sed -i 's/conv 3/conv 5/' my.host
esper grow --resume grown --host my.host --epochs 7
expect_code 2
expect_words err "host is conv 3 | pool | [[conv 4]x2] residual | mean | linear in the run being resumed and cannot become conv 5"
rm my.host
esper grow --resume grown --epochs 7
expect_code 0

# ---- all three kinds of data, a seed in every slot, and slots that are left out
esper train synth_table "${few[@]}" --host 'linear 6 | [norm | linear 6 bare]x2 residual | linear' \
    --plant r0c0:glu,r0c1:mlp,r0c2:norm
expect_code 0
esper train synth_text "${few[@]}" --host 'embed 8 | [layer 2]x2 | [attention 2] residual | norm | linear tied' \
    --plant r0c0:layer:add:copy,r0c1:lora,r0c2:mlp
expect_code 0
esper grow synth "${few[@]}" --host 'conv 2 | pool | conv 2 | mean | linear' --slots r0c1
expect_code 0
expect_words out "one slot, r0c1"
esper info hosts
expect_code 0
expect_words out "resnet" "[[conv 64]x2] residual"

# ---- refused, with the place
expect_refusal() { # TEXT MESSAGE
    esper train synth --host "$1"
    expect_code 2
    expect_equal "what is said of '$1'" "$err" "esper: $2"
}
expect_refusal 'conv 4 | pol | linear' "host: there is no stage 'pol'; did you mean 'pool'?
  conv 4 | pol | linear
           ^^^"
expect_refusal 'embed 8 | linear' "host: embed is for text, and the data is images
  embed 8 | linear
  ^^^^^"
expect_refusal 'resnett' "host: 'resnett' is neither a file nor a host's name; did you mean 'resnet'? There are cnn, resnet, \
transformer, mlp, resmlp; a text is such as 'conv 16 | pool | mean | linear'"
printf 'conv 4\nmean\n' >short.host
expect_refusal short.host "short.host, line 2: a host ends in linear without a width: what the data has to be told apart gives it one
  mean
  ^^^^"
esper train synth --host resnet --channels 4
expect_code 2
expect_words err "--channels has no effect on synth: its host is given as text; leave it out, leave out --host"
esper grow synth --slots r7c7
expect_code 2
expect_words err "slots: the host has no slot 'r7c7'"

# ---- slots with names of their own, also such as Python would not have: in decisions, logs, replays, exports, reports
named='conv 2 | slot stem | pool | conv 3 | slot train | mean | linear'
printf '1 stem germinate blueprint=norm tempo=1\n2 stem advance\n3 train germinate blueprint=conv_light tempo=1\n4 train advance\n' >named.txt
esper grow synth "${few[@]}" --epochs 8 --host "$named" --policy scripted --decisions named.txt --gates permissive \
    --gate-epochs 1 --run-dir named
expect_code 0
expect_words out "2 slots from stem to train"
log=$(cat named/decisions.jsonl)
expect_words log '"slot":"stem"' '"slot":"train"'
esper replay named
expect_code 0
expect_words out "weights equal"
esper grow --resume named --epochs 10
expect_code 0
esper report named
expect_code 0
esper train synth "${few[@]}" --host "$named" --plant stem:norm,train:conv_light --run-dir planted-stem
expect_code 0
esper export planted-stem --torch named-out
expect_code 0
model=$(cat named-out/model.py)
expect_words model "self.stem" "self.train_"
! command -v python3 >/dev/null || python3 -m py_compile named-out/model.py || bad "the module" "$(cat named-out/model.py)"
esper grow synth "${few[@]}" --host "$named" --slots train
expect_code 0
expect_words out "one slot, train"
expect_refusal 'conv 4 | slot blocks | mean | linear' "host: a slot cannot be called 'blocks', which has another meaning
  conv 4 | slot blocks | mean | linear
                ^^^^^^"

# ---- a comparison makes it larger
esper compare synth "${few[@]}" --host 'conv 2 | pool | mean | linear' --policies none,random,static-equal --seeds 1 --dir compared
expect_code 0
expect_words out "eighths"

# ---- blueprints of one's own: planted, tried, decided, logged, replayed, exported; the checkpoint knows them
printf '# two kinds\nwide = conv 2w\n  conv w\nthin =\n  conv w/4 1x1 | conv w bare # back\n' >mine.txt
esper train synth "${small[@]}" --add-blueprints mine.txt --plant r0c0:wide,r0c1:thin --run-dir planted
expect_code 0
record=$(cat planted/config.ini)
expect_words record "add_blueprints = wide = conv 2w | conv w; thin = conv w/4 1x1 | conv w bare"
rm mine.txt
esper eval planted
expect_code 0
esper export planted --torch planted-out
expect_code 0
model=$(cat planted-out/model.py)
expect_words model "r0c0.blocks[1].conv" "scale"
printf '1 r0c0 germinate blueprint=wide tempo=1\n2 r0c0 advance\n' >decisions.txt
esper grow synth "${small[@]}" --epochs 8 --add-blueprints 'wide = conv 2w | conv w' --policy scripted \
    --decisions decisions.txt --gates permissive --gate-epochs 1 --run-dir decided
expect_code 0
log=$(cat decided/decisions.jsonl)
expect_words log '"blueprint":"wide"'
esper replay decided
expect_code 0
expect_words out "weights equal"
esper grow synth_table --threads 1 --epochs 20 --add-blueprints 'deep = linear 4w | linear 4w | linear w bare' --run-dir tried
expect_code 0
log=$(cat tried/decisions.jsonl)
expect_words log '"blueprint":"deep"'
many=$(for i in 1 2 3 4 5 6 7 8 9; do printf 'kind_%d = conv w | [conv w]x%d; ' "$i" "$i"; done)
esper grow synth "${small[@]}" --add-blueprints "${many%; }" --policy heuristic --blueprints kind_1,kind_9 --plant r0c0:kind_8,r0c1:kind_9 \
    --run-dir many
expect_code 0
esper eval many
expect_code 0
esper train synth --add-blueprints 'bad = conv 2w' --plant r0c0:bad
expect_code 2
expect_words err "blueprint bad: blueprint: a blueprint keeps the width of the stream: it ends 128 wide on one of 64"
esper train synth --add-blueprints 'norm = conv w' --plant r0c0:norm
expect_code 2
expect_words err "add_blueprints: there is a blueprint 'norm' already"
esper train synth --add-blueprints 'pooled = pool | conv w' --plant r0c0:pooled
expect_code 2
expect_words err "it has no embed, mean, pool, slot or"
esper train synth --add-blueprints nothing.txt --plant r0c0:x
expect_code 2
expect_words err "is neither a file nor a name with its text"

finish
