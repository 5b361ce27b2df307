#include <fmt/format.h>
#include <fmt/ranges.h>

#include <string>
#include <utility>
#include <vector>

#include "tools/base/text_layout.h"
#include "tools/simulation/simulation.h"

namespace cachalot::tools {
namespace {

using nlohmann::json;

void add_stack(Section& section, const json& lines) {
  for (const json& line : lines) section.add_line("", "  " + line.get<std::string>());
}

void add_breach(Section& section, const json& breach) {
  const std::size_t times = number(breach, "times");
  const std::string repeated = times == 1 ? "" : fmt::format(" ({})", times_text(times));
  section.add_line("broken", word(breach, "text") + repeated, Mood::bad);
  add_stack(section, breach.at("stack"));
  if (!breach.contains("other_stack")) return;
  section.add_line("", "the other call:");
  add_stack(section, breach.at("other_stack"));
}

void add_breaches(Section& root, const ProcessReport& report) {
  const json& driver = report.driver;
  if (driver.is_null() || !driver.contains("breaches")) return;
  Section section = section_of(fmt::format("CUDA's rules in process {}", report.process));
  for (const json& breach : driver.at("breaches")) add_breach(section, breach);
  for (const json& leak : driver.at("leaks")) {
    section.add_line("not freed", word(leak, "text"), Mood::bad);
    add_stack(section, leak.at("stack"));
  }
  if (!breaks_rules(driver)) section.add_line("broken", "none", Mood::good);
  for (const json& kept : driver.at("kept")) section.add_line("kept", word(kept, "text") + ", until the process ends");
  root.add(std::move(section));
}

// "allocated at train.py:8 in load for stream 1, freed at …, and allocated again at …", of which some may be unknown.
std::string life_of_raced(const json& race) {
  std::vector<std::string> parts;
  const auto add = [&](const char* verb, const char* place, const std::string& more = "") {
    if (!race.at(place).is_null()) parts.push_back(fmt::format("{} {}{}", verb, at_place(word(race, place)), more));
  };
  add("allocated", "allocated_at", race.at("allocated_for").is_null() ? "" : " for " + word(race, "allocated_for"));
  add("freed", "freed_at");
  add("allocated again", "reallocated_at");
  return fmt::format("{}", fmt::join(parts, ", "));
}

// A race of cachalot_simulator/compute/races.py.
void add_race(Section& section, const json& race) {
  const std::size_t times = number(race, "times");
  const std::string used_on = word(race, "used_on");
  const std::string reused_on = word(race, "reused_on");
  section.add_line("race",
                   fmt::format("{} that {} uses {} may be overwritten by {} {}{}", bytes_of(race, "bytes"), used_on,
                               at_place(word(race, "used_at")), reused_on, at_place(word(race, "reused_at")),
                               times == 1 ? "" : fmt::format(" ({})", times_text(times))),
                   Mood::bad);
  if (const std::string life = life_of_raced(race); !life.empty()) section.add_line("", life);
  const bool is_record = race.at("missing") == "record_stream";
  section.add_line("", fmt::format("missing: {}a wait of {} for {}",
                                   is_record ? fmt::format("record_stream with {}, before the free, or ", used_on) : "",
                                   reused_on, used_on));
}

void add_races(Section& root, const ProcessReport& report) {
  if (!uses_a_device(report.driver)) return;
  Section section = section_of(fmt::format("memory races in process {}", report.process));
  if (report.torch.is_null() || report.torch.at("races").is_null()) {
    section.add_line("race", "unknown: no allocator of PyTorch reported its blocks", Mood::bad);
  } else {
    for (const json& race : report.torch.at("races")) add_race(section, race);
    if (!has_races(report.torch)) section.add_line("race", "none", Mood::good);
  }
  root.add(std::move(section));
}

}  // namespace

void add_rules(Section& root, const ProcessReport& report, bool has_watched_races) {
  add_breaches(root, report);
  if (has_watched_races) add_races(root, report);
}

}  // namespace cachalot::tools
