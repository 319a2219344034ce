// Packs clients/node, installs the tarball as its users do, and runs suite.mjs there.
//
//     node run.mjs LOCKGATE [NAME]      only the tests whose names have NAME

import { execFileSync, spawnSync } from "node:child_process";
import { cpSync, existsSync, mkdtempSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join, resolve } from "node:path";
import { fileURLToPath } from "node:url";

const here = dirname(fileURLToPath(import.meta.url));
const clients = resolve(here, "../..");
const modules = process.env.CLIENT_MODULES ?? join(clients, "node_modules");
if (!existsSync(join(modules, "ioredis"))) {
  console.error(`${modules}/ioredis is missing: run "make test", which installs it`);
  process.exit(1);
}

const directory = mkdtempSync(join(tmpdir(), "lockgate-node-"));
let status;
try {
  const tarball = execFileSync(resolve(clients, "../../scripts/npm.sh"), [directory], { encoding: "utf8" }).trim();
  writeFileSync(join(directory, "package.json"), '{"private": true}');
  const install = ["install", "--offline", "--silent", "--no-audit", "--no-fund", "--no-save", tarball];
  execFileSync("npm", install, { cwd: directory, stdio: "inherit" });
  for (const library of ["ioredis", "redis"]) {
    symlinkSync(join(modules, library), join(directory, "node_modules", library));
  }
  for (const file of ["deployment.mjs", "program.mjs", "suite.mjs"]) cpSync(join(here, file), join(directory, file));
  cpSync(resolve(clients, "../../docs/clients/node.md"), join(directory, "page.md"));
  const words = process.argv[3] ? ["--test-name-pattern", process.argv[3]] : [];
  const env = { ...process.env, LOCKGATE_BINARY: resolve(process.argv[2]) };
  const options = { cwd: directory, env, stdio: "inherit" };
  ({ status } = spawnSync("node", ["--test-reporter=spec", ...words, "suite.mjs"], options));
} finally {
  rmSync(directory, { recursive: true, force: true });
}
process.exit(status ?? 1);
