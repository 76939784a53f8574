#!/usr/bin/env bash
# ctest: timeout=400 cost=60 labels=soak
# A run that is killed a hundred times, at any moment: its store is sound each time, and what is lost is less than a second.
. "$SOURCE_DIR/tests/cli/common.sh"

python=$(command -v /usr/bin/python3 || command -v python3) || {
    echo "skipped: there is no python3 here to read stores with"
    exit 77
}
n_kills=${N_KILLS:-100}
"$python" - "$ESPER" "$n_kills" <<'END'
import os, random, shutil, signal, sqlite3, subprocess, sys, time

program, n_kills = sys.argv[1], int(sys.argv[2])
random.seed(1)
bad, worst, none_yet = 0, 0.0, 0
for i in range(n_kills):
    shutil.rmtree("run", ignore_errors=True)
    run = subprocess.Popen([program, "grow", "synth", "--threads", "1", "--batch", "8", "--blocks", "2", "--channels", "2", "--max-steps", "5",
                            "--epochs", "100000", "--length", "epochs", "--policy", "random", "--gates", "permissive", "--gate-epochs", "1",
                            "--lr", "0.001", "--progress", "none", "--run-dir", "run"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while not os.path.exists("run/store.sqlite"):
        time.sleep(0.005)
    time.sleep(random.uniform(0.0, 1.6))
    run.send_signal(signal.SIGKILL)
    killed = time.time()
    run.wait()
    base = sqlite3.connect("run/store.sqlite")
    sound = base.execute("PRAGMA integrity_check").fetchall()
    try:
        last = base.execute("SELECT max(time) FROM epochs").fetchone()[0]
    except sqlite3.OperationalError:  # killed before the first commit: there is no table yet
        last = None
    base.close()
    if sound != [("ok",)]:
        bad += 1
        print("FAILED: kill", i, "left", sound)
    if last is None:
        none_yet += 1
        continue
    lost = killed - last
    worst = max(worst, lost)
    if lost > 1.0:
        bad += 1
        print(f"FAILED: kill {i}: the last row is {lost:.2f} s older than the end")
print(f"{n_kills} kills: {bad} bad; what was lost, at most {worst:.2f} s; {none_yet} came before the first epoch was stored")
if n_kills - none_yet < n_kills // 2:
    print("FAILED: too few had stored anything")
    bad += 1
sys.exit(bad > 0)
END
n_checks=$n_kills
n_bad=$?
finish
