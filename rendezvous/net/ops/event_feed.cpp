#include "rendezvous/net/ops/event_feed.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "rendezvous/net/io/asio.hpp"

namespace torchup {
namespace {

constexpr auto batch_interval = std::chrono::milliseconds{20};
constexpr auto change_interval = std::chrono::seconds{1};

using Frame = std::shared_ptr<const std::string>;

Frame frame_of(std::string_view event, std::string_view data) {
  return std::make_shared<const std::string>(fmt::format("event: {}\ndata: {}\n\n", event, data));
}

}  // namespace

Moment this_moment() {
  const auto utc = std::chrono::system_clock::now().time_since_epoch();
  return {std::chrono::steady_clock::now(), std::chrono::duration_cast<std::chrono::microseconds>(utc).count()};
}

/// What all readers share, and what was made for one of them and does for others.
struct EventFeed::Shared : std::enable_shared_from_this<Shared> {
  Shared(asio::io_context& on, const EventRings& kept, OpsSource& jobs)
      : loop{on}, rings{kept}, source{&jobs}, batch{on}, second{on} {}

  /// How far somebody is with a job, by the number of an event or a page's revision, and what he may see.
  using Place = std::tuple<std::string, Right, std::uint64_t>;
  struct Made {
    Frame frame;
    std::uint64_t place = 0;  ///< where one is with it
    std::uint64_t lost = 0;
  };

  [[nodiscard]] Made events_behind(const Place& place);
  [[nodiscard]] Made change_since(const Place& place, JobPage& page);
  [[nodiscard]] Made all_rows(Right right);
  void wake_all() const;
  void wait_second();
  void prepare_pages();
  void added(const std::string& run_id);
  void keep_only(const std::set<std::string>& run_ids);
  void leave(Reader* reader);
  void forget_events();
  void forget_made();
  void end();

  asio::io_context& loop;
  const EventRings& rings;
  OpsSource* source;  ///< null: the feed has ended
  asio::steady_timer batch, second;
  bool counting = false;      ///< seconds, for somebody listens
  std::uint64_t seconds = 0;  ///< so far
  std::set<Reader*> readers = {};
  std::set<std::string> newer = {};                ///< jobs with events that the next batch tells
  std::map<std::string, std::uint64_t> told = {};  ///< events of these jobs up to here are to be told
  std::map<Place, Made> events = {}, changes = {};
  std::size_t events_bytes = 0;  ///< of the frames in `events`
  std::map<Right, Made> rows = {};
  std::uint64_t lost = 0;
};

/// One who follows a job, or all of them.
class EventFeed::Reader : public FrameSource {
 public:
  Reader(std::shared_ptr<Shared> shared, const OpsCall& call)
      : shared_{std::move(shared)}, run_id_{call.run_id}, right_{call.caller.right},
        all_{call.route == OpsRoute::jobs_stream}, behind_{call.behind} {
    shared_->readers.insert(this);
  }
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;
  ~Reader() override { shared_->leave(this); }

  Next next() override {
    // Where this process does not know the jobs any more, or another knows more of them, one looks there again.
    if (!shared_->source || !shared_->source->hosts()) return {{}, true};
    if (all_) return {rows(), false};
    JobPage* const page = shared_->source->page(run_id_);
    if (!page) return {{}, true};
    if (!begun_) return {begin(*page), false};
    if (Frame events = missed()) return {std::move(events), false};
    return {change(*page), false};
  }

  void set_wake(std::function<void()> wake) override { wake_ = std::move(wake); }
  void wake() const {
    if (wake_) wake_();
  }
  [[nodiscard]] const std::string& run_id() const { return run_id_; }

 private:
  Frame begin(JobPage& page) {
    begun_ = true;
    second_ = shared_->seconds;
    revision_ = page.revision();
    const std::uint64_t last = shared_->rings.last(run_id_);
    seen_ = behind_.value_or(last);
    until_ = last;
    unread_ = behind_ && seen_ != last;
    return frame_of("snapshot", page.snapshot(right_, this_moment(), last));
  }

  Frame missed() {
    if (const auto told = shared_->told.find(run_id_); told != shared_->told.end()) {
      until_ = std::max(until_, told->second);
    }
    if (!std::exchange(unread_, false) && seen_ >= until_) return {};
    auto made = shared_->events_behind({run_id_, right_, seen_});
    seen_ = made.place;
    shared_->lost += made.lost;
    return made.frame;
  }

  Frame change(JobPage& page) {
    if (second_ == shared_->seconds || page.revision() == revision_) return {};
    second_ = shared_->seconds;
    const auto made = shared_->change_since({run_id_, right_, revision_}, page);
    revision_ = made.place;
    return made.frame;
  }

  Frame rows() {
    if (begun_ && second_ == shared_->seconds) return {};
    second_ = shared_->seconds;
    const auto made = shared_->all_rows(right_);
    if (begun_ && made.place == revision_) return {};
    revision_ = made.place;
    return frame_of(std::exchange(begun_, true) ? "change" : "snapshot", *made.frame);
  }

  std::shared_ptr<Shared> shared_;
  std::string run_id_;
  Right right_;
  bool all_;
  std::optional<std::uint64_t> behind_;
  std::function<void()> wake_;
  bool begun_ = false;
  bool unread_ = false;         ///< what it asked for is looked up once, whatever that number is
  std::uint64_t seen_ = 0;      ///< events up to this one
  std::uint64_t until_ = 0;     ///< events up to this one are to be told
  std::uint64_t revision_ = 0;  ///< of what it was shown last
  std::uint64_t second_ = 0;    ///< when that was
};

EventFeed::Shared::Made EventFeed::Shared::events_behind(const Place& place) {
  if (const auto known = events.find(place); known != events.end()) return known->second;
  const auto& [run_id, right, behind] = place;
  std::string text;
  const auto seen =
      rings.read(run_id, behind, right, frame_bytes_max, [&text](std::uint64_t seq, std::string_view event) {
        text += fmt::format("event: event\nid: {}\ndata: {}\n\n", seq, event);
      });
  if (seen.gap) text = *frame_of("gap", fmt::format("{{\"lost\":{}}}", seen.lost)) + text;
  Made made{text.empty() ? Frame{} : std::make_shared<const std::string>(std::move(text)), seen.next, seen.lost};
  if (seen.gap) return made;  // anybody may think of a number that never was
  const std::size_t bytes = made.frame ? made.frame->size() : 0;
  if (events_bytes + bytes > kept_bytes_max) forget_events();
  events_bytes += bytes;
  return events.emplace(place, std::move(made)).first->second;
}

EventFeed::Shared::Made EventFeed::Shared::change_since(const Place& place, JobPage& page) {
  if (const auto known = changes.find(place); known != changes.end()) return known->second;
  const auto& [run_id, right, revision] = place;
  const std::uint64_t last = rings.last(run_id);
  const auto patch = page.changes(right, revision, this_moment(), last);
  Frame frame = patch ? frame_of("change", *patch) : frame_of("snapshot", page.snapshot(right, this_moment(), last));
  return changes.emplace(place, Made{std::move(frame), page.revision(), 0}).first->second;
}

/// As GET /v1/jobs gives them, which is a merge patch of itself.
EventFeed::Shared::Made EventFeed::Shared::all_rows(Right right) {
  if (const auto known = rows.find(right); known != rows.end()) return known->second;
  std::vector<std::string> texts;
  std::size_t mixed = 1;
  for (JobPage* const page : source->pages()) {
    const std::string& run_id = page->run_id().value();
    texts.push_back(page->row(this_moment(), rings.last(run_id)));
    mixed = mixed * 31 + (std::hash<std::string>{}(run_id) ^ page->revision());
  }
  auto text = std::make_shared<const std::string>(jobs_text(texts, right, this_moment()));
  return rows.emplace(right, Made{std::move(text), mixed, 0}).first->second;
}

void EventFeed::Shared::wake_all() const {
  for (const Reader* reader : readers) reader->wake();
}

void EventFeed::Shared::wait_second() {
  if (std::exchange(counting, true)) return;
  second.expires_after(change_interval);
  second.async_wait([self = shared_from_this()](boost::system::error_code error) {
    self->counting = false;
    if (error || !self->source || self->readers.empty()) return;
    self->wait_second();
    self->prepare_pages();
  });
}

/// A bit in each turn of the loop; then it is told what has changed.
void EventFeed::Shared::prepare_pages() {
  if (!source) return;
  for (JobPage* const page : source->pages()) {
    if (page->prepare(nodes_a_turn)) continue;
    asio::post(loop, [self = shared_from_this()] { self->prepare_pages(); });
    return;
  }
  ++seconds;
  forget_made();
  wake_all();
}

void EventFeed::Shared::forget_events() {
  events.clear();
  events_bytes = 0;
}

/// What was true a while ago, of which nobody must be told later.
void EventFeed::Shared::forget_made() {
  forget_events();
  changes.clear();
  rows.clear();
}

void EventFeed::Shared::leave(Reader* reader) {
  readers.erase(reader);
  if (readers.empty()) forget_made();
}

/// A further job of a run id may have the same numbers for other events.
void EventFeed::Shared::keep_only(const std::set<std::string>& run_ids) {
  const auto goes = [&](const auto& entry) { return !run_ids.contains(entry.first); };
  std::erase_if(told, goes);
  const auto is_gone = [&](const auto& entry) { return !run_ids.contains(std::get<0>(entry.first)); };
  if (std::ranges::any_of(events, is_gone) || std::ranges::any_of(changes, is_gone)) forget_made();
}

void EventFeed::Shared::added(const std::string& run_id) {
  if (readers.empty()) return;
  const bool first = newer.empty();
  newer.insert(run_id);
  if (!first) return;
  batch.expires_after(batch_interval);
  batch.async_wait([self = shared_from_this()](boost::system::error_code error) {
    if (error) return;
    for (const std::string& job : std::exchange(self->newer, {})) self->told[job] = self->rings.last(job);
    self->forget_events();
    self->wake_all();
  });
}

void EventFeed::Shared::end() {
  source = nullptr;
  batch.cancel();
  second.cancel();
  wake_all();
}

EventFeed::EventFeed(asio::io_context& loop, const EventRings& rings, OpsSource& source)
    : shared_{std::make_shared<Shared>(loop, rings, source)} {}
EventFeed::~EventFeed() { shared_->end(); }

std::shared_ptr<FrameSource> EventFeed::follow(const OpsCall& call) {
  auto reader = std::make_shared<Reader>(shared_, call);
  shared_->wait_second();
  return reader;
}

void EventFeed::added(const std::string& run_id) { shared_->added(run_id); }
void EventFeed::keep_only(const std::set<std::string>& run_ids) { shared_->keep_only(run_ids); }
std::size_t EventFeed::kept_bytes() const { return shared_->events_bytes; }
std::size_t EventFeed::readers() const { return shared_->readers.size(); }
std::uint64_t EventFeed::lost() const { return shared_->lost; }

}  // namespace torchup
