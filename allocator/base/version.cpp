#include "cachalot/version.h"

namespace cachalot {

const char* version() { return CACHALOT_VERSION_STRING; }

}  // namespace cachalot
