#include "tests/worker_runtime/worker/look_agent.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <unistd.h>

#include <array>
#include <catch2/catch.hpp>
#include <cstdlib>

#include "rendezvous/base/worker_channel.hpp"
#include "rendezvous/base/worker_page.hpp"

using namespace torchup;
namespace wp = worker_page;

LookAgent::LookAgent(Memory memory) : memory_{::memfd_create("test-worker", MFD_CLOEXEC | MFD_ALLOW_SEALING)} {
  std::array<int, 2> pair{};
  REQUIRE(::socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair.data()) == 0);
  socket_.reset(pair[0]);
  channel_ = std::make_unique<AgentChannel>(UniqueFd{pair[1]});
  const std::size_t bytes = memory == Memory::whole ? worker_memory_bytes : worker_page_bytes;
  REQUIRE(::ftruncate(memory_.get(), static_cast<off_t>(bytes)) == 0);
  REQUIRE(::fcntl(memory_.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0);
  struct stat status {};
  REQUIRE(::fstat(memory_.get(), &status) == 0);
  const WorkerPageAddress address{::dup(memory_.get()), status.st_dev, status.st_ino, ::getpid()};
  ::setenv(worker_page_variable, to_text(address).c_str(), 1);
  page_ = WorkerPage::open();
  REQUIRE(page_);
}

std::string LookAgent::question(std::uint64_t number) { return *to_packet(LookWanted{number}); }

void LookAgent::ask(std::uint64_t number) const {
  const std::string packet = question(number);
  REQUIRE(::send(socket_.get(), packet.data(), packet.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(packet.size()));
}

std::optional<LookAgent::Looked> LookAgent::hear(std::chrono::milliseconds limit) const {
  const timeval time{limit.count() / 1000, limit.count() % 1000 * 1000 + 1};  // 0 is no limit
  REQUIRE(::setsockopt(socket_.get(), SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time) == 0);
  std::array<char, 200> packet{};
  const ssize_t size = ::recv(socket_.get(), packet.data(), packet.size(), 0);
  if (size < 0) return std::nullopt;
  const auto word = parse_worker_word({packet.data(), static_cast<std::size_t>(size)});
  REQUIRE(word.has_value());
  const auto looked = std::get<WorkerLooked>(**word);
  std::string text(looked.length, '\0');
  REQUIRE(::pread(memory_.get(), text.data(), text.size(), static_cast<off_t>(worker_answer_at)) ==
          static_cast<ssize_t>(text.size()));
  return Looked{looked.number, text};
}

std::uint64_t LookAgent::at(std::size_t offset) const {
  std::uint64_t value = 0;
  REQUIRE(::pread(memory_.get(), &value, sizeof value, static_cast<off_t>(offset)) == sizeof value);
  return value;
}

std::uint64_t LookAgent::helper() const { return at(wp::helper); }
std::uint64_t LookAgent::collectives() const { return at(wp::collectives); }
std::uint64_t LookAgent::collectives_at() const { return at(wp::collectives_at); }
std::uint64_t LookAgent::ending_at() const { return at(wp::ending_at); }
