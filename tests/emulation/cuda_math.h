/* C's <math.h>, for tests/emulation/cuda_emulation.h: what C++ adds to it takes a quarter of the time of a small program. */
#pragma once

/* GNU's C++ library includes C's header as it is where it needs that itself; others know no such word. */
#define _GLIBCXX_INCLUDE_NEXT_C_HEADERS
#include <math.h>
#undef _GLIBCXX_INCLUDE_NEXT_C_HEADERS
