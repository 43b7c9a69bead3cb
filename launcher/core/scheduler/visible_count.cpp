#include "launcher/core/scheduler/visible_count.hpp"

#include "launcher/core/text/text.hpp"
#include "rendezvous/core/link/messages.hpp"

namespace torchup {

int visible_count(std::string_view value) {
  int count = 0;
  for (const std::string_view whole : split(value, ',')) {
    const std::string_view name = stripped(whole);
    const bool number = !name.empty() && name.find_first_not_of("0123456789") == std::string_view::npos;
    if (!number && !name.starts_with("GPU-") && !name.starts_with("MIG-")) break;
    if (++count == local_workers_max) break;
  }
  return count;
}

}  // namespace torchup
