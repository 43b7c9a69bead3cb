#pragma once

#include <fcntl.h>
#include <unistd.h>

namespace torchup {

/// Opens /dev/null for each of the descriptors 0, 1, 2 that is closed, so that no file of ours lands there and takes
/// what is meant for people. First in main, before anything else is opened.
inline void fill_standard_descriptors() {
  while (true) {
    const int fd = ::open("/dev/null", O_RDWR);
    if (fd > 2) ::close(fd);
    if (fd < 0 || fd > 2) return;
  }
}

}  // namespace torchup
