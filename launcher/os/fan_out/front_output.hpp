#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "launcher/core/fan_out/fan_out.hpp"
#include "launcher/os/output/console.hpp"
#include "launcher/os/output/log_file.hpp"

namespace torchup {

/// What the front of a fan-out shows and writes down: the hosts' lines with their names before them, and their events.
///
/// On the loop. What a host has sent is acknowledged when it was taken: a reader that stands still holds the hosts.
class FrontOutput {
 public:
  /// Called from the loop.
  struct Handlers {
    std::function<void(HostLink, std::size_t bytes)> acknowledge;
    std::function<void(bool held)> held;  ///< whether hosts wait for whoever reads us
  };
  /// `events_file`: empty: none.
  FrontOutput(asio::io_context& loop, std::string events_file, bool labelled, Handlers handlers);
  FrontOutput(const FrontOutput&) = delete;
  FrontOutput& operator=(const FrontOutput&) = delete;
  ~FrontOutput();

  void open(HostLink link, std::string_view name);
  /// Output, or events. False: a host sends more than link_window_bytes that were not acknowledged.
  [[nodiscard]] bool take(HostLink link, LinkChannel channel, std::string_view bytes);
  // To our standard error, and acknowledged to nobody.

  /// What a login shell prints there, before the host's own lines.
  void take_before(HostLink link, std::string_view bytes);
  void end_before(HostLink link);
  /// What its command says here.
  void take_said(HostLink link, std::string_view bytes);
  void close(HostLink link);
  /// Whole lines of ours.
  void print(const std::string& lines);

  [[nodiscard]] DiskThread& disk() { return disk_; }

  /// Waits until everything is written, as long as `cat` would; or for `limit`.
  Task<> finish(std::optional<Duration> limit);
  /// Who reads us has no time any more.
  void hurry();

 private:
  struct Host {
    ConsoleTurns::Source out = 0, err = 0, said = 0;
    std::optional<ConsoleTurns::Source> before = {};
    std::string events = {};      ///< a line's beginning
    std::size_t unconfirmed = 0;  ///< bytes that were taken and are not acknowledged
  };
  Console& err() { return separate_err_ ? *separate_err_ : out_; }
  [[nodiscard]] Console::Hooks hooks();
  void feed_aside(ConsoleTurns::Source source, std::string_view bytes);
  void feed(Console& console, ConsoleTurns::Source source, std::string_view bytes);
  void flush_later();
  void flush();
  void confirm_all();
  [[nodiscard]] bool may_confirm(const Host& host);
  void add_events(Host& host, std::string_view bytes);
  void tell_loss(const std::string& what, const std::string& reason);

  asio::io_context& loop_;
  const bool labelled_;
  const Handlers handlers_;
  DiskThread disk_;
  Console out_;
  std::unique_ptr<Console> separate_err_;  ///< empty when stdout and stderr are one file
  std::shared_ptr<LogFile> events_;        ///< null: not asked for
  std::map<HostLink, Host> hosts_;
  bool flush_due_ = false;
  bool disk_full_ = false;
  bool held_ = false;  ///< as it was told
};

}  // namespace torchup
