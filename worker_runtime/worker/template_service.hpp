#pragma once

namespace torchup {

/// In a process that is a template (--preload program: launcher/os/worker/template_process.hpp) it serves the agent,
/// and returns only in the processes that are forked from it, each when it has become the worker that the agent wants:
/// with the environment, descriptors, processors, session and parent-death signal of one that was executed, and random
/// numbers of its own. The template itself ends with its agent. In any other process it does nothing.
///
/// It comes before all else: what constructors and main have done by then every worker has behind it. Where workers
/// cannot be forked from there (threads run, the GPU is open, a child does not compute), the agent is told why, the
/// template ends, and workers are executed.
///
/// What main has made of the environment stays, but for variables in which a worker differs from the template. Its
/// arguments and working directory are those of the workers.
void serve_as_template();

}  // namespace torchup
