#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "launcher/os/diagnosis/local_look.hpp"
#include "launcher/os/diagnosis/look_mail.hpp"
#include "launcher/os/diagnosis/look_order.hpp"
#include "launcher/os/io/loop_post.hpp"
#include "rendezvous/net/io/asio.hpp"

namespace torchup {

/// Orders that wait while a look is taken; further ones are refused.
inline constexpr std::size_t looks_waiting_max = 4;

/// Takes looks at this node's workers, one after the other, on a thread of its own that the first order starts: /proc
/// and workers may keep it waiting, which the loop must not. Lives on the loop.
class LookTaker {
 public:
  struct Listener {
    std::function<void(LookTaken)> taken;
    std::function<void(ArrivalsTaken)> arrived;
  };
  /// `stack_program`: torchup's own file, which is `torchup-stack` under another name.
  LookTaker(asio::io_context& loop, Listener listener, std::string stack_program = "/proc/self/exe");
  LookTaker(const LookTaker&) = delete;
  LookTaker& operator=(const LookTaker&) = delete;
  /// Nobody is told of looks that are not done. A thread that stands still in the kernel is left behind.
  ~LookTaker();

  /// Looks; `taken` is told within look_answer_limit once its turn has come, but for the time that many workers cost.
  /// Errors: errc::limit_exceeded when too many wait; the system's when it gives no thread.
  [[nodiscard]] Result<> take(LookOrder order);
  /// Asks for the answers to `look` alone, which `arrived` is told within answer_limit. Errors: as take.
  [[nodiscard]] Result<> take_arrivals(LookOrder order);
  /// What a worker has said.
  void heard(LocalRank local_rank, const WorkerLooked& answer) { shared_->mail.put(local_rank, answer); }

 private:
  struct Order {
    LookOrder order;
    bool arrivals_only = false;
  };
  /// What the thread shares with us; it may outlive us.
  struct Shared {
    Shared(asio::io_context& loop, Listener the_listener, std::string program)
        : post{loop}, listener{std::move(the_listener)}, stack_program{std::move(program)} {}
    std::mutex mutex;
    std::condition_variable wake;
    std::deque<Order> orders;
    bool closing = false;
    bool busy = false;
    LookMail mail;
    const LoopPost post;
    const Listener listener;  ///< called on the loop
    const std::string stack_program;
  };
  [[nodiscard]] Result<> add(Order order);
  static void run(const std::shared_ptr<Shared>& shared);
  static void perform(const std::shared_ptr<Shared>& shared, Order order);

  std::shared_ptr<Shared> shared_;
  std::thread thread_;
};

}  // namespace torchup
