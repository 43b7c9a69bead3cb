#include "rendezvous/net/io/stranger_list.hpp"

#include <fmt/format.h>

namespace torchup {

StrangerId StrangerList::came(std::string from, Drop drop_it) {
  const StrangerId who{next_++};
  drops_.emplace(who, std::move(drop_it));
  const auto dropped = strangers_.step(strangers::Came{who, std::move(from)});
  if (dropped) {
    drop(dropped->who,
         fmt::format("unproven_max: more newcomers come than say who they are ({} may wait)", strangers_.most()));
  }
  return who;
}

void StrangerList::settled(StrangerId who) {
  drops_.erase(who);
  [[maybe_unused]] const auto nobody = strangers_.step(strangers::Settled{who});
}

bool StrangerList::give_descriptor() {
  const auto dropped = strangers_.step(strangers::NoDescriptor{});
  if (dropped) drop(dropped->who, "unproven_max: this process has no descriptor left");
  return dropped.has_value();
}

/// Its owner may say within that it is settled, and others may come and go.
void StrangerList::drop(StrangerId who, const std::string& why) {
  const auto found = drops_.find(who);
  if (found == drops_.end()) return;
  const Drop drop_it = std::move(found->second);
  drops_.erase(found);
  drop_it(why);
}

}  // namespace torchup
