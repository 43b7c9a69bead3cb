#pragma once

#include <pthread.h>

#include <catch2/catch.hpp>
#include <cstddef>

namespace torchup::test {

/// While it lives the system gives this process no thread: each would have more memory than there is.
class NoThreads {
 public:
  NoThreads() {
    REQUIRE(pthread_getattr_default_np(&before_) == 0);
    pthread_attr_t huge = before_;
    REQUIRE(pthread_attr_setstacksize(&huge, std::size_t{1} << 46) == 0);
    REQUIRE(pthread_setattr_default_np(&huge) == 0);
  }
  NoThreads(const NoThreads&) = delete;
  NoThreads& operator=(const NoThreads&) = delete;
  ~NoThreads() { pthread_setattr_default_np(&before_); }

 private:
  pthread_attr_t before_{};
};

}  // namespace torchup::test
