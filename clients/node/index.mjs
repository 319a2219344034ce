// The same module for import, so that a program which mixes both has one.
import lockgate from "./index.cjs";

export const { lock, once, LockLost, LockgateError, NotAcquired, NotLockgate } = lockgate;
