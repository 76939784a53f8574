#!/usr/bin/env bash
# ctest: timeout=120 cost=5
# --log tensorboard,csv: what runs of every kind leave for other people's tools; read by those that are there. The store, read by
# pandas as docs/logs.md says.
. "$SOURCE_DIR/tests/cli/common.sh"

for command in train grow; do
    length=() && [ $command = train ] || length=(--length epochs)
    esper $command synth "${small[@]}" "${length[@]}" --log csv,tensorboard --run-dir $command --progress none
    expect_code 0
    expect_equal "$last: rows" "$(wc -l <$command/metrics.csv)" 3
    expect_equal "$last: event files" "$(find $command -name 'events.out.tfevents.*' | wc -l)" 1
    expect_equal "$last: the last epoch" "$(tail -n 1 $command/metrics.csv | cut -d, -f1)" 2
done
esper grow --resume grow --epochs 3
expect_code 0
expect_equal "$last: rows" "$(wc -l <grow/metrics.csv)" 4
expect_equal "$last: event files" "$(find grow -name 'events.out.tfevents.*' | wc -l)" 2
esper grow synth "${small[@]}" --run-dir plain --progress none
expect_equal "files that nobody asked for" "$(find plain -name 'metrics*' -o -name '*tfevents*')" ""
refused 2 "log wandb|tensorboard, csv" grow synth "${small[@]}" --log wandb
esper learn synth --threads 1 --batch 8 --blocks 2 --channels 2 --max-steps 3 --epochs 3 --envs 2 --rounds 2 --log csv \
    --run-dir learn --progress none
expect_code 0
expect_equal "$last: rows" "$(wc -l <learn/metrics.csv)" 3
expect_equal "$last: columns" "$(head -n 1 learn/metrics.csv | grep -c return_mean)" 1

# ---- TensorBoard itself
if python3 -c 'from tensorboard.backend.event_processing import event_accumulator' 2>/dev/null; then
    tags=$(python3 - grow <<'EOF'
import sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
log = EventAccumulator(sys.argv[1])
log.Reload()
print([event.step for event in log.Scalars("loss/valid")])
EOF
    )
    expect_equal "epochs that TensorBoard sees" "$tags" "[1, 2, 3]"
else
    echo "no tensorboard: left to a parser of ours (telemetry/logs)"
fi

# ---- pandas, by the lines of the documentation
pandas=
for python in python3 /usr/bin/python3; do
    "$python" -c 'import pandas' 2>/dev/null && pandas=$python && break
done
if [ -n "$pandas" ]; then
    mkdir -p runs && cp -r grow runs/grow
    awk '/^```python/ { inside = 1; next } /^```/ { inside = 0 } inside' "$SOURCE_DIR/docs/logs.md" |
        sed 's/fashion-20260131-1/grow/' >read.py
    n_checks=$((n_checks + 1))
    [ -s read.py ] && "$pandas" read.py >pandas.txt 2>&1 || bad "docs/logs.md, by pandas" "$(cat pandas.txt)"
else
    echo "skipped: the store from pandas, which is not here (Debian: python3-pandas)"
fi
finish
