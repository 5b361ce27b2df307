// The parsers of options: whatever the text, they accept it or say InvalidArgument, and nothing has changed then.
#include "cachalot/options.h"

#include "tests/fuzz/bytes.h"

namespace cachalot::fuzz {
namespace {

void parse(std::string_view text) {
  const Options options = parse_options(text);
  expect(options.text == text, "the text of options is not what was given");
  Options again = parse_options(text, options);
  expect(again == options, "options that are parsed twice differ");
  expect(amend_options("", options).heap == options.heap, "an empty amendment has changed something");
}

}  // namespace
}  // namespace cachalot::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace cachalot;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  fuzz::is_taken([&] { fuzz::parse(text); });
  fuzz::is_taken([&] { amend_options(text, {}); });
  fuzz::is_taken([&] { parse_pytorch_conf(text); });
  return 0;
}
