#include "launcher/core/record/collective_json.hpp"

#include "launcher/core/text/json.hpp"

namespace torchup {

ordered_json collective_json(const std::optional<AwaitedCollective>& call) {
  if (!call) return nullptr;
  ordered_json sides = ordered_json::array();
  for (const OperationSide& side : call->operations) {
    sides.push_back(
        {{"ranks", to_text(side.ranks)}, {"operation", side.operation}, {"sizes", side.sizes}, {"dtype", side.dtype}});
  }
  return {{"group", call->description.empty() ? call->group : call->description},
          {"number", call->number},
          {"operation", call->operation},
          {"sizes", call->sizes},
          {"dtype", call->dtype},
          {"missing", to_text(call->missing)},
          {"waiting", to_text(call->waiting)},
          {"operations", sides}};
}

}  // namespace torchup
