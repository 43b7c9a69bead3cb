#include "launcher/os/fan_out/host_watch.hpp"

#include <fmt/format.h>
#include <stdlib.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <functional>
#include <thread>

using namespace torchup;
using namespace std::chrono_literals;

namespace {

struct Watched {
  explicit Watched(std::string source, Duration limit = host_command_limit)
      : watch{loop,
              {std::move(source), 10ms},
              {[this](const std::vector<Host>& hosts) {
                 names.clear();
                 for (const Host& host : hosts) names += host.name + " ";
                 ++lists;
               },
               [this](std::string why) { failures.push_back(std::move(why)); }},
              limit} {
    watch.start();
  }
  bool until(const std::function<bool()>& condition) {
    const auto end = std::chrono::steady_clock::now() + 60s;
    while (!condition() && std::chrono::steady_clock::now() < end) {
      loop.restart();
      loop.run_one_for(10ms);
    }
    return condition();
  }
  boost::asio::io_context loop;
  std::string names;
  int lists = 0;
  std::vector<std::string> failures;
  HostWatch watch;
};

struct Folder {
  Folder() {
    std::string made = (std::filesystem::temp_directory_path() / "hosts-XXXXXX").string();
    REQUIRE(::mkdtemp(made.data()) != nullptr);
    path = made;
  }
  ~Folder() { std::filesystem::remove_all(path); }
  void write(const std::string& name, const std::string& content) const {
    std::ofstream{path / (name + ".new")} << content;
    std::filesystem::rename(path / (name + ".new"), path / name);
  }
  [[nodiscard]] std::string at(const std::string& name) const { return (path / name).string(); }
  std::filesystem::path path;
};

}  // namespace

TEST_CASE("a file is read again and again", "[process][fan_out]") {
  const Folder folder;
  folder.write("list", "a\nb:4\n");
  Watched watched{folder.at("list")};
  REQUIRE(watched.until([&] { return watched.names == "a b "; }));
  folder.write("list", "b:4\n");
  REQUIRE(watched.until([&] { return watched.names == "b "; }));
  REQUIRE(watched.lists == 2);  // the same list is no news
}

TEST_CASE("what cannot be had changes nothing and is told once", "[process][fan_out]") {
  const Folder folder;
  folder.write("list", "a\n");
  Watched watched{folder.at("list")};
  REQUIRE(watched.until([&] { return watched.lists == 1; }));
  folder.write("list", "# nobody\n");
  REQUIRE(watched.until([&] { return watched.failures.size() == 1; }));
  folder.write("list", "b\n");
  REQUIRE(watched.until([&] { return watched.names == "b "; }));
  folder.write("list", "b color=red\n");
  REQUIRE(watched.until([&] { return watched.failures.size() == 2; }));
  REQUIRE(watched.failures.back().find("--host-discovery:1: ") != std::string::npos);
  REQUIRE(watched.lists == 2);
}

TEST_CASE("a command tells the hosts where it succeeds", "[process][fan_out]") {
  const Folder folder;
  folder.write("code", "0");
  Watched watched{
      fmt::format("echo >> {}; echo a; echo b slots=2; exit $(cat {})", folder.at("asked"), folder.at("code"))};
  REQUIRE(watched.until([&] { return watched.names == "a b "; }));
  REQUIRE(watched.until([&] { return std::filesystem::file_size(folder.at("asked")) >= 3; }));
  REQUIRE(watched.lists == 1);  // the same list is no news
  folder.write("code", "3");
  REQUIRE(watched.until([&] { return !watched.failures.empty(); }));
  REQUIRE(watched.failures.back().find("the command has failed") != std::string::npos);
  REQUIRE(watched.lists == 1);
}

TEST_CASE("who is stopped asks no more, though its time has come already", "[process][fan_out]") {
  const Folder folder;
  const auto asked = [&] { return std::filesystem::file_size(folder.at("asked")); };
  folder.write("asked", "");
  Watched watched{fmt::format("echo >> {}; echo a", folder.at("asked"))};
  REQUIRE(watched.until([&] { return watched.lists == 1; }));
  // Both have expired when the loop looks at them, and the first one's handler stops the second.
  boost::asio::steady_timer first{watched.loop, std::chrono::steady_clock::now() - 1s};
  first.async_wait([&](const boost::system::error_code&) { watched.watch.stop(); });
  std::this_thread::sleep_for(20ms);
  const auto before = asked();
  const auto end = std::chrono::steady_clock::now() + 200ms;
  static_cast<void>(watched.until([&] { return std::chrono::steady_clock::now() >= end; }));
  REQUIRE(asked() == before);
}

TEST_CASE("a file that can be executed is a program, whatever its path", "[process][fan_out]") {
  const Folder folder;
  std::filesystem::create_directory(folder.path / "two words");
  folder.write("two words/alive", "#!/bin/sh\necho a\n");
  std::filesystem::permissions(folder.path / "two words/alive", std::filesystem::perms::owner_all);
  SECTION("with a blank") {
    Watched watched{folder.at("two words/alive")};
    REQUIRE(watched.until([&] { return watched.names == "a "; }));
  }
  SECTION("in the working directory") {
    const auto before = std::filesystem::current_path();
    std::filesystem::current_path(folder.path / "two words");
    {
      Watched watched{"alive"};
      CHECK(watched.until([&] { return watched.names == "a "; }));
    }
    std::filesystem::current_path(before);
  }
}

TEST_CASE("a command that prints without end is cut", "[process][fan_out]") {
  Watched watched{"yes host"};
  REQUIRE(watched.until([&] { return !watched.failures.empty(); }));
  REQUIRE(watched.failures.front().find("prints too much") != std::string::npos);
}

TEST_CASE("a command that never ends is killed", "[process][fan_out]") {
  Watched watched{"trap '' TERM; while :; do sleep 100; done", 200ms};
  REQUIRE(watched.until([&] { return watched.failures.size() == 1; }));
}
