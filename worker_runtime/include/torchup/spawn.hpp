#pragma once

#include <torchup/worker.hpp>

namespace torchup {

/// Runs `train` in `nprocs` processes on this machine, without a launcher; 0: one per GPU, or one where there is none.
///
///   int main(int argc, char** argv) { return torchup::spawn(argc, argv, train, 4); }
///
/// The program is started again (same file, same arguments, environment of worker number 0, 1, …), because a process
/// that has threads or CUDA cannot be forked and go on. So main runs in each worker too, and what stands before the
/// call happens in all of them. In a worker, and under a real launcher, the call is worker_main(argc, argv, train,
/// options); in the first process it waits for all and serves their store.
///
/// When one fails the others get SIGTERM, and SIGKILL after 5 s. The result is the first failure's exit code (128 + n
/// for signal n), or 0. Workers die with the first process.
int spawn(int argc, char** argv, const Train& train, int nprocs, const WorkerOptions& options = {});

}  // namespace torchup
