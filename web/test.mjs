// The page in a browser, as somebody uses it: with a mouse, with keys alone, on a phone, in the dark, while a run goes on.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { openBrowser, serve } from "./browser.mjs";

const browser = await openBrowser();
let server = await serve("runs");
let n = 0;
let failed = 0;

/** A fresh page; what a browser complains about, and scripts that should not run, fail the test. */
async function test(what, options, body) {
  const page = await browser.newPage({ viewport: { width: 1200, height: 900 }, ...options });
  const complaints = [];
  page.on("console", (message) => {
    if (message.type() === "error" && !/ERR_CONNECTION_REFUSED|ERR_CONNECTION_RESET|ERR_INCOMPLETE|ERR_EMPTY|404/.test(message.text())) complaints.push(message.text());
  });
  page.on("pageerror", (error) => complaints.push(error.message));
  page.on("dialog", (dialog) => {
    complaints.push("a dialog: " + dialog.message());
    dialog.dismiss();
  });
  page.setDefaultTimeout(30000); // a busy machine is slow, not wrong
  try {
    await page.goto(server.url);
    await body(page);
    assert.deepEqual(complaints, []);
    console.log(`ok: ${what}`);
  } catch (error) {
    failed++;
    console.log(`FAILED: ${what}\n    ${String(error.message).replaceAll("\n", "\n    ")}`);
  }
  n++;
  await page.close();
}

const open = (page, hash) => page.evaluate((h) => { location.hash = h; }, hash);
const ready = (page) => page.waitForSelector("main[data-ready=yes] section");
const runNames = (page) => page.locator("table.runs tbody td.name > :first-child").allTextContents();

await test("runs are listed, searched and sorted", {}, async (page) => {
  await page.waitForSelector("table.runs tbody tr");
  assert.deepEqual((await runNames(page)).sort(), ['<img src=x onerror=alert(1)>"&', "drill", "grown", "learned", "plain"]);
  await page.fill("input[type=search]", "learn");
  assert.deepEqual(await runNames(page), ["learned"]);
  await page.fill("input[type=search]", "good");
  assert.equal((await runNames(page)).length, 2); // by its tag; a copy has it too
  await page.fill("input[type=search]", "plain");
  assert.equal(await page.locator("tr[data-id=plain] :is(a, input)").count(), 0); // esper train keeps no store: nothing to open
  await page.fill("input[type=search]", "synth done");
  assert.equal((await runNames(page)).length, 5);
  await page.fill("input[type=search]", "");
  await page.click("button.sort:has-text('Run')");
  const up = await runNames(page);
  await page.click("button.sort:has-text('Run')");
  assert.deepEqual(await runNames(page), up.toReversed());
  assert.equal(await page.locator("th[aria-sort=descending]").textContent(), "Run ↓");
});

await test("names that mean to do harm are text", {}, async (page) => {
  await page.click("text=<img src=x");
  await ready(page);
  assert.equal(await page.locator("h1").textContent(), '<img src=x onerror=alert(1)>"&');
  assert.equal(await page.locator("main img").count(), 0);
});

await test("five questions have answers", {}, async (page) => {
  await open(page, "#/run/grown");
  await ready(page);
  const tiles = await page.locator(".tile").allTextContents();
  assert.equal(tiles.length, 5);
  for (const [i, question] of ["Which seed paid?", "When was it put in?", "What did it cost?", "Did it help?", "Is it healthy?"].entries()) assert.ok(tiles[i].startsWith(question) && tiles[i].length > question.length + 2, tiles[i]);
  assert.match(await page.locator("#answer-help").textContent(), /points.*test accuracy.*without growth/);
  await open(page, "#/run/drill");
  await page.waitForFunction(() => document.querySelector("h1")?.textContent === "drill" && document.querySelector("#answer-healthy"));
  assert.match(await page.locator("#answer-healthy").textContent(), /after repairs.*went back/);
  assert.match(await page.locator("svg.health").textContent(), /blocks\.[01]\./);
});

await test("gates and trials say what they mean", {}, async (page) => {
  await open(page, "#/run/grown");
  await ready(page);
  const checks = (await page.locator("ul.checks").allTextContents()).join("\n");
  assert.match(checks, /epochs in this stage: [0-9.]+ measured, [0-9.]+ asked for/);
  assert.match(checks, /has it germinated\? yes/);
  assert.doesNotMatch(checks, /epochs_in_stage|against/);
  assert.match(await page.locator("main").textContent(), /No trial was held: random decided, which decides otherwise\./);
});

await test("the slider shows the network of any epoch, everywhere", {}, async (page) => {
  await open(page, "#/run/grown");
  await ready(page);
  await page.waitForSelector("#drawing svg.network");
  const born = await page.evaluate(() => fetch("api/run?run=grown").then((r) => r.json()).then((d) => d.tables.germinations.rows[0][d.tables.germinations.columns.indexOf("epoch")]));
  const slider = page.locator("input[data-epochs]").first();
  await slider.fill("0");
  assert.match(await page.locator("#now").textContent(), /as it began/);
  await page.waitForFunction(() => !/germinated|training|blending|holding|fossilized/.test(document.querySelector("#drawing svg.network")?.textContent ?? "training"));
  await slider.fill(String(born));
  await page.waitForFunction(() => /germinated|training|blending|holding|fossilized/.test(document.querySelector("#drawing svg.network").textContent));
  assert.match(await page.locator(".happened").textContent(), /germinate/);
  const marker = await page.locator(".curve .cursor").first().getAttribute("x1");
  await slider.fill(String(born + 3));
  assert.notEqual(await page.locator(".curve .cursor").first().getAttribute("x1"), marker);
});

await test("curves are zoomed, smoothed, laid over", {}, async (page) => {
  await open(page, "#/run/grown");
  await ready(page);
  const chart = page.locator("svg.chart").first();
  const path = () => chart.locator("path.line.grown:not(.faint)").last().getAttribute("d");
  const before = await path();
  await chart.scrollIntoViewIfNeeded();
  const box = await chart.boundingBox();
  await page.mouse.move(box.x + 150, box.y + 80);
  await page.mouse.down();
  await page.mouse.move(box.x + 300, box.y + 80, { steps: 5 });
  await page.mouse.up();
  const becomes = async (right) => { // it is drawn anew in the next frame, which a busy machine makes late
    for (let i = 0; i < 200 && !right(await path()); i++) await page.waitForTimeout(25);
    return path();
  };
  const zoomed = await becomes((now) => now !== before);
  assert.notEqual(zoomed, before);
  await page.click("text=Show all");
  assert.equal(await becomes((now) => now === before), before);
  await page.locator("input[aria-label=Smooth]").fill("0.8");
  assert.notEqual(await path(), before);
  assert.ok((await chart.locator(".faint").count()) > 0);
  await page.locator("select").first().focus();
  await page.waitForSelector("select option[value=drill]", { state: "attached" });
  await page.locator("select").first().selectOption("drill");
  await page.waitForFunction(() => document.querySelectorAll("svg.chart path.other").length > 0);
  assert.ok((await page.locator("rect.phase").count()) > 0 && (await page.locator("svg.chart .mark").count()) > 0);
});

await test("two runs are compared", {}, async (page) => {
  await page.waitForSelector("table.runs tbody tr");
  assert.ok(await page.locator("button.primary").isDisabled());
  await page.check("input[aria-label='Compare grown']");
  await page.check("input[aria-label='Compare drill']");
  await page.click("button.primary");
  await ready(page);
  assert.equal(await page.locator("h1").textContent(), "2 runs compared");
  assert.match(await page.locator("table.versus").last().textContent(), /seed.*1.*2/);
  assert.equal(await page.locator("svg.chart").first().locator("path.line").count(), 2);
  await page.selectOption("select", "flops");
  await page.waitForFunction(() => /[GMk]/.test(document.querySelector("svg.chart").textContent));
});

await test("a policy that learned", {}, async (page) => {
  await open(page, "#/run/learned");
  await ready(page);
  assert.match(await page.locator("#lead").textContent(), /learned from 6 episodes in 3 rounds/);
  assert.ok((await page.locator("path.spread").count()) > 0);
  assert.match(await page.locator("main").textContent(), /What the policy does.*Transfer/s);
});

await test("light and dark, by the system and by choice", { colorScheme: "dark" }, async (page) => {
  const paper = () => page.evaluate(() => getComputedStyle(document.body).backgroundColor);
  assert.equal(await paper(), "rgb(20, 23, 27)");
  await page.click("#theme");
  assert.equal(await paper(), "rgb(255, 255, 255)");
  await page.reload();
  assert.equal(await paper(), "rgb(255, 255, 255)");
  await page.keyboard.press("t");
  assert.equal(await paper(), "rgb(20, 23, 27)");
});

await test("on paper it is light, and without buttons", { colorScheme: "dark" }, async (page) => {
  await open(page, "#/run/grown");
  await ready(page);
  await page.emulateMedia({ media: "print" });
  assert.equal(await page.evaluate(() => getComputedStyle(document.body).backgroundColor), "rgb(255, 255, 255)");
  for (const gone of [".top", ".tools", ".contents"]) assert.ok(!(await page.locator(gone).first().isVisible()), gone);
  assert.ok(await page.locator("#drawing svg.network").isVisible());
});

await test("rows that were lost are a gap", {}, async (page) => {
  await page.route("**/api/run?run=grown", async (route) => {
    const answer = await route.fetch();
    const whole = await answer.json();
    const { columns, rows } = whole.tables.epochs;
    const at = columns.indexOf("epoch");
    whole.tables.epochs.rows = rows.filter((row) => row[at] < 5 || row[at] > 8);
    whole.n_dropped = 4;
    await route.fulfill({ json: whole });
  });
  await open(page, "#/run/grown");
  await ready(page);
  assert.match(await page.locator(".note").textContent(), /4 records of this run were lost/);
  const path = await page.locator("svg.chart").first().locator("path.line.grown:not(.thin)").getAttribute("d");
  assert.equal(path.split("M").length - 1, 2);
});

await test("keys alone", {}, async (page) => {
  const key = (k) => page.keyboard.press(k);
  await page.waitForSelector("table.runs tbody tr");
  await key("/");
  await page.keyboard.type("grow");
  await key("Escape");
  await key("j");
  await key("x");
  await key("j");
  await key("x");
  await key("c");
  await page.waitForFunction(() => document.querySelector("h1")?.textContent === "2 runs compared");
  await key("u");
  await page.waitForSelector("table.runs tbody tr");
  await key("/");
  await page.keyboard.press("Control+A");
  await page.keyboard.type("drill");
  await key("Escape");
  await key("j");
  await key("Enter");
  await page.waitForFunction(() => document.querySelector("h1")?.textContent === "drill");
  await ready(page);
  const now = () => page.locator("#now").textContent();
  assert.match(await now(), /^epoch 8 of 8/);
  await key("ArrowLeft");
  assert.match(await now(), /^epoch 7/);
  await key("Home");
  assert.match(await now(), /^as it began/);
  await key("Shift+ArrowRight");
  assert.match(await now(), /^epoch 8/);
  await key("Home");
  await key("Space");
  await page.waitForFunction(() => /^epoch [2-8]/.test(document.querySelector("#now").textContent));
  await key("?");
  assert.ok(await page.locator("dialog").isVisible());
  await key("Escape");
  assert.ok(!(await page.locator("dialog").isVisible()));
  await key("5");
  assert.equal(await page.evaluate(() => document.activeElement.textContent), "Health and rollbacks");
  for (let i = 0; i < 40; i++) await key("Tab"); // nothing holds the focus
  assert.notEqual(await page.evaluate(() => document.activeElement.tagName), null);
});

await test("420 wide: nothing is cut", { viewport: { width: 420, height: 800 } }, async (page) => {
  for (const hash of ["#/", "#/run/grown", "#/run/drill", "#/run/learned", "#/compare/grown/drill", "#/run/nothing"]) {
    await open(page, hash);
    await page.waitForTimeout(700);
    const wide = await page.evaluate(() => [document.documentElement, ...document.querySelectorAll(".wide, table, .tiles, .top, .player, svg")].filter((e) => e.scrollWidth > e.clientWidth + 1 && e.clientWidth > 0 && !(e instanceof SVGElement && e.closest("svg") !== e) && !(e instanceof SVGElement)).map((e) => `${e.tagName}.${e.className} ${e.scrollWidth} > ${e.clientWidth}`));
    assert.deepEqual(wide, [], hash);
    const out = await page.evaluate(() => [...document.querySelectorAll("main *")].filter((e) => e.getBoundingClientRect().right > innerWidth + 1 && !e.closest("svg") && !e.closest(".hidden")).length);
    assert.equal(out, 0, `${hash}: elements beyond the edge`);
  }
});

await test("a run that goes on is shown as it goes, without a reload; a server that comes back is found", {}, async (page) => {
  await page.waitForSelector("table.runs tbody tr");
  await page.evaluate(() => { window.stayed = true; });
  // longer than any machine needs for what follows, and stopped then
  const run = spawn(process.env.ESPER, ["grow", "synth", "--threads", "1", "--batch", "16", "--blocks", "2", "--channels", "4", "--max-steps", "200", "--epochs", "20000", "--length", "epochs", "--policy", "random", "--gates", "permissive", "--gate-epochs", "1", "--run-dir", "runs/live", "--progress", "none"], { stdio: "ignore" });
  const over = new Promise((resolve) => run.on("exit", resolve));
  try {
    await page.waitForSelector("tr[data-id=live] .b-running");
    await page.click("tr[data-id=live] a");
    await ready(page);
    const epochs = () => page.evaluate(() => Number(document.querySelector("#now").textContent.match(/of (\d+)/)[1]));
    const reaches = (k) => page.waitForFunction((least) => Number(document.querySelector("#now").textContent.match(/of (\d+)/)[1]) >= least, k);
    await reaches((await epochs()) + 3);
    assert.equal(await page.locator("#state").textContent(), "live");
    await server.stop();
    await page.waitForFunction(() => document.querySelector("#state").textContent.startsWith("reconnecting"));
    const later = await epochs();
    server = await serve("runs", server.port);
    await reaches(later + 1);
    run.kill("SIGINT");
    await over;
    await page.waitForFunction(() => /was stopped after \d+ epochs/.test(document.querySelector("#lead").textContent));
    assert.match(await page.locator("#lead").textContent(), new RegExp(`was stopped after ${await epochs()} epochs`));
    assert.equal(await page.evaluate(() => window.stayed), true);
  } finally {
    run.kill("SIGKILL");
    await over;
  }
});

await browser.close();
await server.stop();
console.log(`${n} tests, ${failed} failed`);
process.exit(failed === 0 ? 0 : 1);
