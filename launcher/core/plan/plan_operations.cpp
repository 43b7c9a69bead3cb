#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "launcher/core/plan/plan_steps.hpp"
#include "rendezvous/core/text/printable.hpp"
#include "rendezvous/core/text/source_list.hpp"

namespace torchup {
namespace {

Result<> read_port(const OptionValues& options, OperationsOptions& doors) {
  if (!options.has("status-port")) return {};
  const auto number = options.integer("status-port", 0);
  if (!number) return number.error();
  if (*number < 0 || *number > std::numeric_limits<std::uint16_t>::max()) {
    return bad(fmt::format("--status-port={}: a port is a number from 0 to 65535", *number));
  }
  doors.status_port = Port{static_cast<std::uint16_t>(*number)};
  return {};
}

/// As Host has it: a name without port.
bool is_host_name(std::string_view text) {
  return !text.empty() && text.size() <= 253 && std::ranges::all_of(text, [](unsigned char c) {
    return c > ' ' && c < 0x7f && std::string_view{"/:@[]\""}.find(static_cast<char>(c)) == std::string_view::npos;
  });
}

}  // namespace

Result<> plan_operations(const PlanSource& source, LaunchConfig& plan) {
  const OptionValues& options = source.options;
  OperationsOptions& doors = plan.operations;
  doors.control_socket = !options.flag("no-control-socket");
  if (auto read = read_port(options, doors); !read) return read;
  doors.status_bind = options.text("status-bind", doors.status_bind);
  if (doors.status_bind != "localhost" && !read_address(doors.status_bind)) {
    return bad(fmt::format("--status-bind={}: neither localhost nor a numeric address of this machine",
                           printable(doors.status_bind)));
  }
  if (!options.has("status-host")) return {};
  doors.host_names = comma_list(options.text("status-host"));
  for (const std::string& name : doors.host_names) {
    if (!is_host_name(name)) return bad(fmt::format("--status-host: '{}' is no name of a host", printable(name)));
  }
  return {};
}

}  // namespace torchup
