#include "launcher/os/rehearsal/starter_link.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <cstdlib>
#include <string_view>

#include "rendezvous/core/text/printable.hpp"
#include "rendezvous/net/io/write_all.hpp"

namespace torchup {
namespace {

constexpr std::size_t told_node_bytes_max = 60;

bool is_pipe(int fd) {
  struct stat status {};
  return ::fstat(fd, &status) == 0 && S_ISFIFO(status.st_mode);
}

}  // namespace

StarterLink take_starter_link() {
  const char* const value = std::getenv(rehearsed_node_variable);
  if (!value) return {};
  StarterLink found{value, is_pipe(starter_descriptor)};
  ::unsetenv(rehearsed_node_variable);
  if (found.has_pipe) ::fcntl(starter_descriptor, F_SETFD, FD_CLOEXEC);
  return found;
}

Result<std::optional<RehearsedNode>> rehearsed_node(const StarterLink& found) {
  if (found.node.empty()) return std::optional<RehearsedNode>{};
  auto node = parse_rehearsed_node(found.node);
  if (node && found.has_pipe) return std::optional{*std::move(node)};
  const std::string why = node ? "no starter listens on descriptor 3" : node.error().message();
  return fail(errc::bad_value,
              fmt::format("{}='{}': {} (only --rehearse-nodes sets it: unset it)", rehearsed_node_variable,
                          printable_start(found.node, told_node_bytes_max), why));
}

void tell_starter(const RehearsalReport& report) {
  const std::string text = encode(report);
  std::string_view rest = text;
  static_cast<void>(write_all(starter_descriptor, rest));  // without a starter we are about to end
}

}  // namespace torchup
