// How long somebody waits: scripts/test-web --measure. A list of 1,000 runs, with and without an index, and a run of 1,000 epochs.
import { rmSync } from "node:fs";
import { loadavg } from "node:os";
import { openBrowser, serve } from "./browser.mjs";

const ROUNDS = 5;
const browser = await openBrowser();

const median = (values) => values.toSorted((a, b) => a - b)[Math.floor(values.length / 2)];
const tell = (what, values) => console.log(`${what}: ${median(values).toFixed(2)} s (${values.map((v) => v.toFixed(2)).join(" ")})`);

/** Seconds that something takes. */
async function timed(body) {
  const began = performance.now();
  await body();
  return (performance.now() - began) / 1000;
}

/** From the first byte asked for to a page on which `found` is there and a frame has been drawn since. */
async function open(server, hash, found) {
  const page = await browser.newPage({ viewport: { width: 1200, height: 900 } });
  const seconds = await timed(async () => {
    await page.goto(server.url + hash);
    await page.waitForFunction(found);
    await page.evaluate(() => new Promise((resolve) => requestAnimationFrame(() => requestAnimationFrame(resolve))));
  });
  return { page, seconds };
}

console.log(`load ${loadavg().map((l) => l.toFixed(2)).join(" ")}`);

const cold = [];
const warm = [];
const listed = [];
for (let i = 0; i < ROUNDS; i++) {
  for (const ending of ["", "-wal", "-shm"]) rmSync("many/index.db" + ending, { force: true });
  let server;
  cold.push(await timed(async () => { server = await serve("many"); }));
  await server.stop();
  warm.push(await timed(async () => { server = await serve("many"); }));
  const { page, seconds } = await open(server, "#/", () => document.querySelectorAll("table.runs tbody tr").length === 1000);
  listed.push(seconds);
  await page.close();
  await server.stop();
}
tell("the server is there, 1,000 runs and no index", cold);
tell("the server is there, 1,000 runs and an index", warm);
tell("1,000 runs listed", listed);

const opened = [];
const sought = [];
const server = await serve("long");
for (let i = 0; i < ROUNDS; i++) {
  const { page, seconds } = await open(server, "#/run/thousand", () => document.querySelector("main[data-ready=yes] #drawing svg.network") !== null);
  opened.push(seconds);
  const input = page.locator("input[data-epochs]").first();
  sought.push(await timed(async () => {
    await input.fill(String(300 + i));
    await page.waitForFunction((n) => document.querySelector("#now").textContent.startsWith(`epoch ${n} `), 300 + i);
  }));
  await page.close();
}
await server.stop();
tell("a run of 1,000 epochs is drawn and answers", opened);
tell("its slider is moved", sought);
await browser.close();
