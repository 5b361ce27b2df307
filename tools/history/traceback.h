// Lines of a traceback of Python. PyTorch has the calls of forward in this form, the oldest call first:
//
//     '  File "model.py", line 3, in forward\n    return self.layer(x)\n'
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace cachalot::tools {

struct TracebackCall {
  std::string_view file;
  std::string_view function;
  std::uint32_t line = 0;

  friend bool operator==(const TracebackCall&, const TracebackCall&) = default;
};

// Returns the call. Of text in another form the first line is the function.
TracebackCall call_of_traceback(std::string_view text);

// Returns the text, without the source line.
std::string traceback_text(const TracebackCall& call);

}  // namespace cachalot::tools
