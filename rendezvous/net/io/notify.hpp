#pragma once

#include <string_view>

namespace torchup {

/// Tells the service manager (systemd's $NOTIFY_SOCKET) how we are: "READY=1", "STOPPING=1". Does nothing without one.
/// Source: sd_notify(3).
void notify_service_manager(std::string_view state);

}  // namespace torchup
