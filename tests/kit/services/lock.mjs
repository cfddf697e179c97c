// Takes out of the lock file what pins nothing and names hosts. Run by `npm run lock`.
import { readFileSync, writeFileSync } from "node:fs";

const path = "package-lock.json";
const lock = JSON.parse(readFileSync(path, "utf8"));
for (const entry of Object.values(lock.packages)) {
  delete entry.funding;
  delete entry.license;
}
writeFileSync(path, JSON.stringify(lock, null, 2) + "\n");
