#include "tools/commands/card_options.h"

#include <algorithm>
#include <utility>

#include "base/bytes.h"
#include "simulator/gpu_models.h"
#include "tools/simulation_cards.h"

namespace cachalot::tools {

void declare_cards(CLI::App& app, CardOptions& options) {
  app.add_option("--gpu", options.gpus,
                 "A GPU to answer for (default: all that `cachalot gpus` lists); may be given several "
                 "times")
      ->type_name("GPU")
      ->allow_extra_args(false);
  app.add_option("--memory", options.memory,
                 "A GPU like an h100 with so much memory instead, such as 24GiB; may be given "
                 "several times")
      ->type_name("SIZE")
      ->allow_extra_args(false);
}

std::vector<Card> cards_of(const CardOptions& options, const simulator::ContextCharge& context,
                           const simulator::Spread& of_others) {
  std::vector<Card> all = known_cards(context, of_others);
  if (!options.are_given()) return all;
  std::vector<Card> cards;
  const auto add = [&](Card card) {
    const auto is_the_same = [&](const Card& other) {
      return other.key == card.key && other.memory_bytes == card.memory_bytes;
    };
    if (std::ranges::none_of(cards, is_the_same)) cards.push_back(std::move(card));
  };
  const auto known = [&](const std::string& name) {
    return *std::ranges::find(all, simulator::find_gpu_model(name).key, &Card::key);
  };
  for (const std::string& name : options.gpus) add(known(name));
  for (const std::string& size : options.memory) {
    Card card = known("h100");
    card.product = size;
    card.memory_bytes = parse_bytes(size);
    add(std::move(card));
  }
  return cards;
}

}  // namespace cachalot::tools
