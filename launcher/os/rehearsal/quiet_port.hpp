#pragma once

#include "rendezvous/base/result.hpp"
#include "rendezvous/base/types.hpp"

namespace torchup {

/// A port of 127.0.0.1 that nobody has, and that the kernel gives nobody for a connection: while the node that hosts
/// the rendezvous is away the others dial it, and one of them would meet itself there. Where the kernel's range leaves
/// no room, any free one.
///
/// Errors: errc::refused when none was found, the system's.
[[nodiscard]] Result<Port> quiet_port();

}  // namespace torchup
