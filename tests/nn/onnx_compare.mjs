// Runs ONNX models in ONNX Runtime's WebAssembly build and compares their outputs with ours.
//
// usage: node onnx_compare.mjs ORT FOLDER    ORT: the folder of the npm package onnxruntime-web; FOLDER: a folder for each case, with
//                                            model.onnx, input.bin, output.bin and shape.json ({ids, input, output}, of a sample)
//
// A line for each case that differs; the last line counts them and tells the worst.
import { readFileSync, readdirSync } from "node:fs";
import { join } from "node:path";
import { createRequire } from "node:module";

const [ortFolder, folder] = process.argv.slice(2);
const ort = createRequire(import.meta.url)(join(ortFolder, "dist", "ort.node.min.js"));
const TOLERANCE = 1e-5; // of the largest output, or of 1

function floats(path) {
    const bytes = readFileSync(path);
    return new Float32Array(bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.byteLength));
}

async function distance(at) {
    const shape = JSON.parse(readFileSync(join(at, "shape.json"), "utf8"));
    const session = await ort.InferenceSession.create(readFileSync(join(at, "model.onnx")), { executionProviders: ["wasm"] });
    const raw = floats(join(at, "input.bin"));
    const wanted = floats(join(at, "output.bin"));
    const n = raw.length / shape.input.reduce((a, b) => a * b, 1);
    const input = shape.ids
        ? new ort.Tensor("int64", BigInt64Array.from(new Int32Array(raw.buffer), BigInt), [n, ...shape.input])
        : new ort.Tensor("float32", raw, [n, ...shape.input]);
    const { output } = await session.run({ input });
    const dims = [n, ...shape.output];
    if (output.dims.length !== dims.length || output.dims.some((d, i) => d !== dims[i]))
        throw new Error(`the output is (${output.dims}), ours (${dims})`);
    let worst = 0;
    let largest = 1;
    for (let i = 0; i < wanted.length; i++) {
        const off = Math.abs(output.data[i] - wanted[i]);
        largest = Math.max(largest, Math.abs(wanted[i]));
        worst = off <= worst ? worst : off;
    }
    await session.release();
    return worst / largest;
}

ort.env.wasm.numThreads = 1;
ort.env.logLevel = "error";
let bad = 0;
let worst = 0;
const cases = readdirSync(folder).sort();
for (const name of cases)
    try {
        const off = await distance(join(folder, name));
        worst = Math.max(worst, off);
        if (!(off <= TOLERANCE)) {
            console.log(`${name}: ${off.toExponential(2)} away from ours`);
            bad++;
        }
    } catch (error) {
        console.log(`${name}: ${error.message}`);
        bad++;
    }
console.log(`${cases.length} cases, ${bad} differ, the worst is ${worst.toExponential(2)} away`);
process.exit(bad === 0 && cases.length > 0 ? 0 : 1);
