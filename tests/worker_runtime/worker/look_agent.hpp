#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "rendezvous/net/io/unique_fd.hpp"
#include "worker_runtime/place/agent_channel.hpp"
#include "worker_runtime/place/worker_page.hpp"

/// The agent's end of a page and a channel, and the worker's, of this same process. In a file of its own: the packets'
/// Error is another one than that of programs with LibTorch.
class LookAgent {
 public:
  enum class Memory { whole, page_alone };  ///< page_alone: as an older agent's
  explicit LookAgent(Memory memory = Memory::whole);

  torchup::AgentChannel& channel() const { return *channel_; }
  torchup::WorkerPage& page() const { return *page_; }

  [[nodiscard]] static std::string question(std::uint64_t number);
  void ask(std::uint64_t number) const;
  struct Looked {
    std::uint64_t number;
    std::string text;  ///< the answer
  };
  /// What the worker says next; nothing: it has said nothing in time.
  [[nodiscard]] std::optional<Looked> hear(std::chrono::milliseconds limit = std::chrono::minutes{1}) const;

  [[nodiscard]] std::uint64_t helper() const;
  [[nodiscard]] std::uint64_t collectives() const;
  [[nodiscard]] std::uint64_t collectives_at() const;
  [[nodiscard]] std::uint64_t ending_at() const;

 private:
  [[nodiscard]] std::uint64_t at(std::size_t offset) const;

  torchup::UniqueFd memory_;
  torchup::UniqueFd socket_;
  std::unique_ptr<torchup::AgentChannel> channel_;
  std::unique_ptr<torchup::WorkerPage> page_;
};
