//! Guarded keys are written under their locks or not at all, and replies are those of Redis.

mod account;
mod commands;
mod databases;
mod fencing;
mod forgotten;
mod guide;
mod patterns;
mod pipeline;
mod random;
mod replicas;
mod slots;
mod writes;
