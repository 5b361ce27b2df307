#include "tools/serving/serving_fit.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/bytes.h"

namespace cachalot::tools {
namespace {

std::string gpu_text(const ServingQuestion& question) {
  return question.gpus == 1 ? question.card.key : fmt::format("{}x{}", question.card.key, question.gpus);
}

std::string part_text(const ServingPart& part) {
  const bool is_estimate = part.least != part.most;
  return fmt::format(
      "{:>11}  {}{}", format_bytes(part.bytes), part.rule,
      is_estimate ? fmt::format("; estimate, {} to {}", format_bytes(part.least), format_bytes(part.most)) : "");
}

// "yes", "no: at most 3,000 tokens", with a question mark where it may change within the estimates.
std::string answer_text(const ServingFit& fit) {
  const std::string mark = fit.is_unsure ? "?" : "";
  if (fit.fits) return "yes" + mark;
  if (fit.longest == 0) return "no" + mark;
  return fmt::format("no{}: at most {} tokens", mark, with_commas(static_cast<std::uint64_t>(fit.longest)));
}

std::string count_text(std::int64_t count) { return with_commas(static_cast<std::uint64_t>(count)); }

void add_one(Section& section, const ServingFit& fit) {
  for (const ServingPart& part : fit.parts) section.add_line(part.key, part_text(part));
  section.add_line(
      "cache", fmt::format("{:>11}  {}{}; {}", format_bytes(fit.kv_bytes),
                           fit.question.kv_cache_bytes ? "" : "what these leave of ", fit.budget_rule, fit.kv_rule));
  section.add_line("a token", fmt::format("{:>11}", format_bytes(fit.kv_token_bytes)));
  if (fit.state_bytes > 0) section.add_line("a request's states", fmt::format("{:>11}", format_bytes(fit.state_bytes)));
  section.add_line("tokens", fmt::format("{:>11}", count_text(fit.tokens)));
  section.add_line("requests", fmt::format("{:>11.2f}  of {} tokens", fit.requests, count_text(fit.max_model_len)));
  section.add_line("longest context",
                   fmt::format("{:>11}  with {}", count_text(fit.longest),
                               format_count(static_cast<std::uint64_t>(fit.question.batch), "request")));
  section.add(Figure{
      .label = "fits", .cell = {nullptr, answer_text(fit), fit.fits ? Mood::good : Mood::bad}, .is_answer = true});
}

Cell cell_of(const ServingFit& fit, const std::string& name) {
  if (name == "max_model_len") return fit.max_model_len;
  if (name == "batch") return fit.question.batch;
  if (name == "quantization") return fit.question.quantization;
  return fit.question.gpus;
}

Table table_of(const std::vector<std::string>& varied, const std::vector<ServingFit>& fits) {
  Table table{.title = "Servers",
              .columns = {{.title = "GPU", .is_left = true}},
              .is_wide = true,
              .indent = 0,
              .views = kForPeople};
  for (const std::string& name : varied)
    table.columns.push_back({.title = name, .unit = name == "quantization" ? Unit::text : Unit::count});
  for (const char* title : {"weights", "cache"}) table.columns.push_back({.title = title, .unit = Unit::bytes});
  for (const char* title : {"tokens", "longest"}) table.columns.push_back({.title = title, .unit = Unit::count});
  table.columns.push_back({.title = "requests"});
  table.columns.push_back({.title = "fits"});
  for (const ServingFit& fit : fits) {
    std::vector<Cell> cells = {gpu_text(fit.question)};
    for (const std::string& name : varied) cells.push_back(cell_of(fit, name));
    cells.emplace_back(fit.parts.front().bytes);
    cells.emplace_back(fit.kv_bytes);
    cells.emplace_back(fit.tokens);
    cells.emplace_back(fit.longest);
    cells.emplace_back(fmt::format("{:.2f}", fit.requests));
    cells.emplace_back(
        nullptr,
        fit.fits ? fmt::format("yes{}", fit.is_unsure ? "?" : "") : fmt::format("no{}", fit.is_unsure ? "?" : ""),
        fit.fits ? Mood::good : Mood::bad);
    table.rows.push_back(std::move(cells));
  }
  return table;
}

}  // namespace

std::string serving_title(const ServedModel& model, const std::vector<ServingFit>& fits) {
  const ServingFit& first = fits.front();
  const std::string title =
      fmt::format("{} with {}, by {}, for each GPU", model.type, name_of(first.question.engine), first.origin);
  return fits.size() == 1 ? fmt::format("{} on {}", title, gpu_text(first.question)) : title;
}

Section serving_report(const ServedModel& model, const std::vector<std::string>& varied,
                       const std::vector<ServingFit>& fits) {
  Section section;
  section.add(Note{.text = serving_title(model, fits), .is_bold = true});
  if (fits.size() == 1) {
    add_one(section, fits.front());
  } else {
    section.add(table_of(varied, fits));
  }
  if (std::ranges::any_of(fits, &ServingFit::is_unsure)) section.add(Note{.text = kUnsure});
  return section;
}

Json serving_json(const ServedModel& model, const std::vector<ServingFit>& fits) {
  Json json = {{"engine", name_of(fits.front().question.engine)},
               {"by", fits.front().origin},
               {"model", {{"type", model.type}, {"parameters", model.parameters()}}},
               {"results", Json::array()}};
  for (const ServingFit& fit : fits) {
    Json result = {{"gpu", fit.question.card.key},
                   {"gpus", fit.question.gpus},
                   {"memory_bytes", fit.question.card.memory_bytes},
                   {"budget_bytes", fit.budget_bytes}};
    for (const ServingPart& part : fit.parts)
      result[part.key] = {
          {"bytes", part.bytes}, {"least_bytes", part.least}, {"most_bytes", part.most}, {"rule", part.rule}};
    result["quantization"] = fit.question.quantization.empty() ? model.quantization.method : fit.question.quantization;
    result["kv_cache"] = {
        {"bytes", fit.kv_bytes}, {"token_bytes", fit.kv_token_bytes},        {"state_bytes", fit.state_bytes},
        {"tokens", fit.tokens},  {"tokens_by_blocks", fit.tokens_by_blocks}, {"rule", fit.kv_rule}};
    result["max_model_len"] = fit.max_model_len;
    result["batch"] = fit.question.batch;
    result["longest_context"] = fit.longest;
    result["requests"] = fit.requests;
    result["fits"] = fit.fits;
    result["unsure"] = fit.is_unsure;
    json["results"].push_back(std::move(result));
  }
  return json;
}

}  // namespace cachalot::tools
