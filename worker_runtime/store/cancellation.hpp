#pragma once

namespace torchup {

/// Ends what waits at the job's store, on all connections of this process, and whatever would wait there from now on,
/// with DistNetworkError. From any thread.
void cancel_store_calls();
void allow_store_calls();

/// Readable while they are cancelled. The same descriptor for the life of the process.
int store_calls_cancelled();

}  // namespace torchup
