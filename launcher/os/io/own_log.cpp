#include "launcher/os/io/own_log.hpp"

namespace torchup {

LogOptions own_log(const LogWords& words) {
  return {.program = "torchup",
          .level = read_log_level(words.level).value(),
          .format = read_log_format(words.format).value()};
}

}  // namespace torchup
