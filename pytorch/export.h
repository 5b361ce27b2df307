// What libcachalot_torch.so shows to others; everything else in it is hidden.
#pragma once

#define CACHALOT_EXPORT [[gnu::visibility("default")]]
