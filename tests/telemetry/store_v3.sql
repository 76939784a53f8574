-- A run store of version 3, as 0.1 wrote it: esper grow synth --epochs 3 --max-steps 5 --policy random --gates permissive
-- --inject 7:host:param:nan --run-dir old
PRAGMA application_id = 1165193330;
PRAGMA user_version = 3;
BEGIN TRANSACTION;
CREATE TABLE attributions (run INTEGER NOT NULL REFERENCES runs (id), seq INTEGER NOT NULL, time REAL NOT NULL, epoch INTEGER, step INTEGER, nonfinite TEXT, measure TEXT, seed INTEGER, slot TEXT, other_seed INTEGER, value REAL, lower REAL, upper REAL, n_samples INTEGER, n_epochs INTEGER, PRIMARY KEY (run, seq)) WITHOUT ROWID;
CREATE TABLE decisions (run INTEGER NOT NULL REFERENCES runs (id), seq INTEGER NOT NULL, time REAL NOT NULL, epoch INTEGER, step INTEGER, nonfinite TEXT, number INTEGER, source TEXT, op TEXT, slot TEXT, seed INTEGER, blueprint TEXT, blend TEXT, tempo INTEGER, alpha_target REAL, alpha_speed INTEGER, alpha_curve TEXT, accepted INTEGER, reason TEXT, line TEXT, PRIMARY KEY (run, seq)) WITHOUT ROWID;
INSERT INTO "decisions" VALUES(1,1,1.79481686790878105161e+09,1,5,NULL,0,'policy','wait',NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,1,'Drawn at random','{"number":0,"epoch":1,"step":5,"weights":"3490dc807f54ccb2","source":"policy","op":"wait","slot":null,"blueprint":null,"style":null,"tempo":5,"target":1,"speed":0,"curve":"linear","reason":"chance","confidence":1,"text":"Drawn at random"}');
INSERT INTO "decisions" VALUES(1,3,1.79481686793928194045e+09,2,7,NULL,1,'injection','nan',NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,1,'blocks.0.bn.weight (param), element 0','{"number":1,"epoch":2,"step":7,"weights":"acbbe92e7cfb79a3","source":"injection","tensor":"blocks.0.bn.weight","role":"param","element":0,"fault":"nan","bit":1,"point":"between_steps"}');
INSERT INTO "decisions" VALUES(1,4,1.79481686793979811666e+09,2,7,NULL,2,'governor','roll_back',NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,1,'governor_scan: NaN in blocks.0.bn.weight (param)','{"number":2,"epoch":2,"step":7,"weights":"9cafa944d4fec85d","source":"governor","action":"roll_back","reason":"governor_scan","tensor":"blocks.0.bn.weight","role":"param","problem":"NaN","n_elements":1,"first_index":0,"loss":"nan","to_step":5,"pruned":[],"lr_scale":1}');
INSERT INTO "decisions" VALUES(1,8,1.79481686798395109177e+09,2,9,NULL,3,'policy','germinate','r1c1',0,'attention','multiply',3,0.5,NULL,NULL,1,'Drawn at random','{"number":3,"epoch":2,"step":9,"weights":"655f5f4ab19c3818","source":"policy","op":"germinate","slot":"r1c1","blueprint":"attention","style":"linear_multiply","tempo":3,"target":0.5,"speed":0,"curve":"linear","reason":"chance","confidence":1,"text":"Drawn at random"}');
INSERT INTO "decisions" VALUES(1,14,1.79481686808000493044e+09,3,14,NULL,4,'policy','wait',NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,1,'Drawn at random','{"number":4,"epoch":3,"step":14,"weights":"aa0e9c9e57d1766f","source":"policy","op":"wait","slot":null,"blueprint":null,"style":null,"tempo":5,"target":1,"speed":0,"curve":"linear","reason":"chance","confidence":1,"text":"Drawn at random"}');
CREATE TABLE drops (run INTEGER NOT NULL REFERENCES runs (id), records TEXT NOT NULL, n INTEGER NOT NULL, PRIMARY KEY (run, records)) WITHOUT ROWID;
CREATE TABLE episodes (run INTEGER NOT NULL REFERENCES runs (id), seq INTEGER NOT NULL, time REAL NOT NULL, epoch INTEGER, step INTEGER, nonfinite TEXT, round INTEGER, env INTEGER, rng_seed TEXT, policy TEXT, total_reward REAL, acc_valid REAL, acc_valid_best REAL, acc_test REAL, params INTEGER, n_germinated INTEGER, n_kept INTEGER, n_pruned INTEGER, n_rollbacks INTEGER, n_steps INTEGER, seconds REAL, PRIMARY KEY (run, seq)) WITHOUT ROWID;
CREATE TABLE epochs (run INTEGER NOT NULL REFERENCES runs (id), seq INTEGER NOT NULL, time REAL NOT NULL, epoch INTEGER, step INTEGER, nonfinite TEXT, loss_train REAL, acc_train REAL, loss_valid REAL, acc_valid REAL, lr REAL, grad_norm REAL, params INTEGER, n_seeds INTEGER, flops_train INTEGER, samples_per_s REAL, seconds REAL, weight_hash TEXT, PRIMARY KEY (run, seq)) WITHOUT ROWID;
INSERT INTO "epochs" VALUES(1,0,1.79481686790877604477e+09,1,5,NULL,2.26950019635260114014e+00,21.40625,2.26589583635330216182e+00,7.5,0.05,8.37167981817993123172e-01,6418,0,2832384000,1.69874386122884570796e+04,6.42698399997243541292e-02,'3490dc807f54ccb2');
INSERT INTO "epochs" VALUES(1,7,1.79481686798394608501e+09,2,9,NULL,1.96755133662372827529e+00,49.21875,2.12809741616249104012e+00,32.5,0.05,8.39687887465848437074e-01,6562,1,6231244800,1.46077057818145203786e+04,3.90463959993212483823e-02,'655f5f4ab19c3818');
INSERT INTO "epochs" VALUES(1,13,1.79481686808000111578e+09,3,14,NULL,1.59247660469263796478e+00,76.71875,1.75873686462640765881e+00,29.5,0.05,8.29180024313012742354e-01,6562,1,9063628800,9.00304297220909393196e+03,8.19658310001614154316e-02,'aa0e9c9e57d1766f');
CREATE TABLE events (run INTEGER NOT NULL REFERENCES runs (id), seq INTEGER NOT NULL, time REAL NOT NULL, epoch INTEGER, step INTEGER, nonfinite TEXT, event TEXT, event_seq INTEGER, data TEXT, PRIMARY KEY (run, seq)) WITHOUT ROWID;
CREATE TABLE gate_checks (run INTEGER NOT NULL REFERENCES runs (id), seq INTEGER NOT NULL, time REAL NOT NULL, epoch INTEGER, step INTEGER, nonfinite TEXT, gate INTEGER, name TEXT, value REAL, threshold REAL, passed INTEGER, PRIMARY KEY (run, seq)) WITHOUT ROWID;
CREATE TABLE gates (run INTEGER NOT NULL REFERENCES runs (id), seq INTEGER NOT NULL, time REAL NOT NULL, epoch INTEGER, step INTEGER, nonfinite TEXT, seed INTEGER, slot TEXT, gate TEXT, mode TEXT, to_stage TEXT, passed INTEGER, score REAL, message TEXT, PRIMARY KEY (run, seq)) WITHOUT ROWID;
CREATE TABLE germinations (run INTEGER NOT NULL REFERENCES runs (id), seq INTEGER NOT NULL, time REAL NOT NULL, epoch INTEGER, step INTEGER, nonfinite TEXT, seed INTEGER, slot TEXT, blueprint TEXT, blend TEXT, params INTEGER, parent_run INTEGER, parent_seed INTEGER, acc_valid REAL, reason TEXT, PRIMARY KEY (run, seq)) WITHOUT ROWID;
INSERT INTO "germinations" VALUES(1,11,1.79481686798396491999e+09,2,9,NULL,0,'r1c1','attention','multiply',144,NULL,NULL,NULL,'Drawn at random');
CREATE TABLE health (run INTEGER NOT NULL REFERENCES runs (id), seq INTEGER NOT NULL, time REAL NOT NULL, epoch INTEGER, step INTEGER, nonfinite TEXT, grad_norm REAL, param_norm REAL, n_skipped INTEGER, n_tensors INTEGER, tensor TEXT, role TEXT, problem TEXT, n_elements INTEGER, first_index INTEGER, loss REAL, reason TEXT, action TEXT, PRIMARY KEY (run, seq)) WITHOUT ROWID;
INSERT INTO "health" VALUES(1,5,1.79481686793995094293e+09,2,7,NULL,NULL,NULL,0,1,'blocks.0.bn.weight','param','NaN',1,0,NULL,'governor_scan','roll_back');
CREATE TABLE rewards (run INTEGER NOT NULL REFERENCES runs (id), seq INTEGER NOT NULL, time REAL NOT NULL, epoch INTEGER, step INTEGER, nonfinite TEXT, round INTEGER, env INTEGER, episode_epoch INTEGER, op TEXT, total REAL, attribution REAL, blending_warning REAL, holding_warning REAL, pbrs REAL, synergy REAL, rent REAL, alpha_shock REAL, occupancy_rent REAL, fossil_rent REAL, action_shaping REAL, fossilize_bonus REAL, drip REAL, loss_delta REAL, terminal REAL, escrow_forfeit REAL, auto_prune REAL, hindsight REAL, rollback REAL, PRIMARY KEY (run, seq)) WITHOUT ROWID;
INSERT INTO "rewards" VALUES(1,2,1.79481686790878796579e+09,1,5,NULL,NULL,NULL,1,'wait',0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0);
INSERT INTO "rewards" VALUES(1,9,1.79481686798396396632e+09,2,9,NULL,NULL,NULL,2,'germinate',0.1485,0.0,0.0,0.0,0.2985,0.0,0.0,0.0,0.0,0.0,-0.15,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0);
INSERT INTO "rewards" VALUES(1,15,1.79481686808002495765e+09,3,14,NULL,NULL,NULL,3,'wait',1.175,0.0,0.0,0.0,-0.3,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,1.475,0.0,0.0,0.0,0.0);
CREATE TABLE rollbacks (run INTEGER NOT NULL REFERENCES runs (id), seq INTEGER NOT NULL, time REAL NOT NULL, epoch INTEGER, step INTEGER, nonfinite TEXT, action TEXT, from_epoch INTEGER, from_step INTEGER, to_epoch INTEGER, to_step INTEGER, n_damaged INTEGER, n_pruned INTEGER, lr_scale REAL, seconds REAL, reason TEXT, PRIMARY KEY (run, seq)) WITHOUT ROWID;
INSERT INTO "rollbacks" VALUES(1,6,1.79481686793995308878e+09,2,5,NULL,'roll_back',2,7,2,5,0,0,1.0,6.02700001763878390192e-05,'NaN in blocks.0.bn.weight (param): 1 element, the first at 0; 1 bad tensor; back from step 7 to step 5');
CREATE TABLE runs (id INTEGER PRIMARY KEY, began REAL, ended REAL, n_resumed INTEGER, name TEXT, task TEXT, policy TEXT, gate_mode TEXT, rng_seed TEXT, kernels TEXT, threads INTEGER, build TEXT, parent_run INTEGER, relation TEXT, params_host INTEGER, reward_mode TEXT, flops_host INTEGER, status TEXT, epochs INTEGER, steps INTEGER, params INTEGER, flops INTEGER, flops_train INTEGER, loss_test REAL, acc_test REAL, weight_hash TEXT, seconds REAL, total_reward REAL, nonfinite TEXT, config TEXT);
INSERT INTO "runs" VALUES(1,1.79481686781220793722e+09,1.79481686811579489704e+09,0,'old','synth','random','permissive','1','cpu/avx512/td14867bb',2,'cd7accb9fce4',NULL,NULL,6418,'escrow',1622656,'ESPER_OK',3,14,6418,1622656,9063628800,1.80122469234466553444e+00,29.4,'aa0e9c9e57d1766f',4.57296151999798894394e-01,-8.67649999999999899102e+00,NULL,'seed = 1
threads = 0
backend = auto
run_dir = old
checkpoint_every = 1
progress = none
log_level = info
epochs = 3
batch = 128
max_steps = 5
optimizer = sgd
lr = 0.05
momentum = 0.9
weight_decay = 0.0005
beta1 = 0.9
beta2 = 0.999
adam_eps = 1e-08
clip = 1
schedule = constant
warmup = 0
lr_min = 0
lr_epochs = 0
lr_finish = 0
policy = random
policy_cmd = 
policy_deadline = 30
decisions = 
gates = permissive
gate_epochs = 10
embargo = 5
max_seeds = 0
max_params = 0
blueprints = 
plateau = 0.5
plateau_epochs = 3
plant = 
incubation = aside
seed_lr = 1
attribution = 0.25
reward = escrow
reward_weights = 
inject = 7:host:param:nan
rounds = 100
envs = 16
patience = 0
policy_width = 64
ppo_lr = 0.001
ppo_epochs = 4
ppo_chunk = 16
ppo_batch = 8
ppo_clip = 0.2
ppo_kl = 0.02
ppo_lambda = 0.95
ppo_entropy = 0.02
ppo_entropy_end = 0.005
ppo_floor = 1
guard = true
snapshot_every = 100
guard_checksum = false
max_rollbacks = 3
rank_deadline = 30
comm = auto
sync_norm = false
data = 
valid_fraction = 0.1
train_limit = 0
crop = 0
flip = false
cutout = 0
blocks = 3
channels = 8
kernel = 3
pools = -1
layers = 4
width = 128
heads = 4
context = 128
segments = 2
dropout = 0
');
CREATE TABLE seed_epochs (run INTEGER NOT NULL REFERENCES runs (id), seq INTEGER NOT NULL, time REAL NOT NULL, epoch INTEGER, step INTEGER, nonfinite TEXT, seed INTEGER, slot TEXT, stage TEXT, epochs_in_stage INTEGER, alpha REAL, alpha_target REAL, params INTEGER, grad_norm REAL, grad_ratio REAL, grad_health REAL, PRIMARY KEY (run, seq)) WITHOUT ROWID;
INSERT INTO "seed_epochs" VALUES(1,10,1.79481686798396491999e+09,2,9,NULL,0,'r1c1','germinated',0,0.0,0.0,144,NULL,NULL,NULL);
INSERT INTO "seed_epochs" VALUES(1,16,1.79481686808002495765e+09,3,14,NULL,0,'r1c1','germinated',1,0.0,0.0,144,NULL,NULL,NULL);
CREATE TABLE stages (run INTEGER NOT NULL REFERENCES runs (id), seq INTEGER NOT NULL, time REAL NOT NULL, epoch INTEGER, step INTEGER, nonfinite TEXT, seed INTEGER, slot TEXT, from_stage TEXT, to_stage TEXT, alpha REAL, acc_delta REAL, epochs_in_stage INTEGER, initiator TEXT, reason TEXT, PRIMARY KEY (run, seq)) WITHOUT ROWID;
INSERT INTO "stages" VALUES(1,12,1.79481686798396611218e+09,2,9,NULL,0,'r1c1','dormant','germinated',0.0,0.0,0,'policy','Drawn at random');
CREATE TABLE updates (run INTEGER NOT NULL REFERENCES runs (id), seq INTEGER NOT NULL, time REAL NOT NULL, epoch INTEGER, step INTEGER, nonfinite TEXT, round INTEGER, n_episodes INTEGER, return_mean REAL, return_sd REAL, acc_mean REAL, params_mean REAL, kl REAL, clip_fraction REAL, explained_variance REAL, loss_policy REAL, loss_value REAL, entropy REAL, entropy_slot REAL, entropy_blueprint REAL, entropy_style REAL, entropy_tempo REAL, entropy_alpha_target REAL, entropy_alpha_speed REAL, entropy_alpha_curve REAL, entropy_op REAL, n_learned INTEGER, n_skipped INTEGER, grad_norm REAL, steps_per_s REAL, seconds REAL, health TEXT, PRIMARY KEY (run, seq)) WITHOUT ROWID;
CREATE VIEW epochs_standing AS SELECT * FROM epochs AS t WHERE NOT EXISTS (SELECT 1 FROM rollbacks AS b WHERE b.run = t.run AND b.seq > t.seq AND b.to_step < t.step);
CREATE VIEW germinations_standing AS SELECT * FROM germinations AS t WHERE NOT EXISTS (SELECT 1 FROM rollbacks AS b WHERE b.run = t.run AND b.seq > t.seq AND b.to_step < t.step);
CREATE VIEW stages_standing AS SELECT * FROM stages AS t WHERE NOT EXISTS (SELECT 1 FROM rollbacks AS b WHERE b.run = t.run AND b.seq > t.seq AND b.to_step < t.step);
CREATE VIEW seed_epochs_standing AS SELECT * FROM seed_epochs AS t WHERE NOT EXISTS (SELECT 1 FROM rollbacks AS b WHERE b.run = t.run AND b.seq > t.seq AND b.to_step < t.step);
CREATE VIEW gates_standing AS SELECT * FROM gates AS t WHERE NOT EXISTS (SELECT 1 FROM rollbacks AS b WHERE b.run = t.run AND b.seq > t.seq AND b.to_step < t.step);
CREATE VIEW gate_checks_standing AS SELECT * FROM gate_checks AS t WHERE NOT EXISTS (SELECT 1 FROM rollbacks AS b WHERE b.run = t.run AND b.seq > t.seq AND b.to_step < t.step);
CREATE VIEW decisions_standing AS SELECT * FROM decisions AS t WHERE t.source IN ('governor', 'injection') OR NOT EXISTS (SELECT 1 FROM rollbacks AS b WHERE b.run = t.run AND b.seq > t.seq AND b.to_step < t.step);
CREATE VIEW attributions_standing AS SELECT * FROM attributions AS t WHERE NOT EXISTS (SELECT 1 FROM rollbacks AS b WHERE b.run = t.run AND b.seq > t.seq AND b.to_step < t.step);
CREATE VIEW rewards_standing AS SELECT * FROM rewards AS t WHERE NOT EXISTS (SELECT 1 FROM rollbacks AS b WHERE b.run = t.run AND b.seq > t.seq AND b.to_step < t.step);
CREATE VIEW seeds AS WITH moves AS (SELECT * FROM stages_standing) SELECT g.run AS run, g.seed AS seed, g.slot AS slot, g.blueprint AS blueprint, g.blend AS blend, g.params AS params, g.parent_run AS parent_run, g.parent_seed AS parent_seed, coalesce(f.to_stage, (SELECT m.to_stage FROM moves AS m WHERE m.run = g.run AND m.seed = g.seed AND m.seq > g.seq ORDER BY m.seq DESC LIMIT 1), 'germinated') AS stage, g.epoch AS germinated_epoch, (SELECT min(m.epoch) FROM moves AS m WHERE m.run = g.run AND m.seed = g.seed AND m.seq > g.seq AND m.to_stage = 'blending') AS blended_epoch, CASE f.to_stage WHEN 'fossilized' THEN f.epoch END AS fossilized_epoch, CASE f.to_stage WHEN 'pruned' THEN f.epoch END AS pruned_epoch, f.initiator AS initiator, coalesce(f.reason, CASE WHEN f.seq IS NULL THEN g.reason END) AS reason, c.value AS contribution, c.lower AS contribution_lower FROM germinations_standing AS g LEFT JOIN stages AS f ON f.run = g.run AND f.seq = (SELECT m.seq FROM moves AS m WHERE m.run = g.run AND m.seed = g.seed AND m.seq > g.seq AND m.to_stage IN ('fossilized', 'pruned') ORDER BY m.seq DESC LIMIT 1) LEFT JOIN attributions AS c ON c.run = g.run AND c.seq = (SELECT a.seq FROM attributions_standing AS a WHERE a.run = g.run AND a.seed = g.seed AND a.seq > g.seq AND a.measure = 'contribution' ORDER BY a.seq DESC LIMIT 1);
COMMIT;
