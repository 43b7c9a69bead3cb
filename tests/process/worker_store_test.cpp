#include "launcher/os/worker/worker_store.hpp"

#include <fcntl.h>
#include <sys/resource.h>

#include <catch2/catch.hpp>
#include <system_error>
#include <vector>

#include "rendezvous/net/io/unique_fd.hpp"
#include "tests/support/no_threads.hpp"

using namespace torchup;

TEST_CASE("a workers' store that gets no thread is not opened", "[process][worker_store]") {
  {
    const test::NoThreads none;
    const auto opened = WorkerStore::open({.bind = "127.0.0.1"});
    REQUIRE_FALSE(opened.has_value());
    REQUIRE(opened.error().code == std::errc::resource_unavailable_try_again);
  }
  REQUIRE(WorkerStore::open({.bind = "127.0.0.1"}).has_value());
}

TEST_CASE("a workers' store that gets too few descriptors is not opened", "[process][worker_store]") {
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &before) == 0);
  const UniqueFd highest{::open("/dev/null", O_RDONLY | O_CLOEXEC)};
  bool opens = false;
  for (rlim_t more = 1; !opens; ++more) {
    rlimit few = before;
    few.rlim_cur = static_cast<rlim_t>(highest.get()) + more;
    REQUIRE(::setrlimit(RLIMIT_NOFILE, &few) == 0);
    const auto opened = WorkerStore::open({.bind = "127.0.0.1"});
    ::setrlimit(RLIMIT_NOFILE, &before);
    opens = opened.has_value();
    if (!opens) REQUIRE(opened.error().code == std::errc::too_many_files_open);
    if (more == 1) REQUIRE_FALSE(opens);
    REQUIRE(more < 16);
  }
}
