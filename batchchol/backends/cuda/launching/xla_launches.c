/* Handlers of XLA's foreign function interface that launch kernels themselves: Python is asked what to launch for arrays
 * of a shape, once, and all that is not known. Structures are read as words, as batchchol/interop/jax/xla.py says. */
#include <stdint.h>
#include <string.h>

enum { MOST_LAUNCHES = 32, MOST_RANK = 8, MOST_ARRAYS = 8, MOST_WORDS = 8 };
/* Words of a call, of an array, and of the interface's functions. */
enum { EXTENSION = 1, API = 2, CONTEXT = 3, ARGUMENTS = 7, RESULTS = 12 };
enum { TYPE = 2, DATA = 3, RANK = 4, DIMS = 5 };
enum { ERROR_DESTROY = 8, STREAM_GET = 10 };

struct array {
    int64_t type, rank, dims[MOST_RANK];
};

/* A kernel for arguments of these shapes in a context, until `valid` points to 0. */
struct launch {
    const int *valid;
    void *context, *kernel;
    int64_t arguments, results, words;
    struct array shapes[MOST_ARRAYS];
    uint64_t fixed[MOST_WORDS];
    uint32_t geometry[8];
};

struct configuration {
    uint32_t geometry[8];
    uint64_t stream, attributes, count;
};

struct handler {
    void *(*python)(uint64_t *frame);
    int known;
    struct launch launches[MOST_LAUNCHES];
};

static int (*current_context)(void **context);
static int (*launch_kernel)(const void *configuration, void *kernel, void **parameters, void **extra);

static const uint64_t *array_of(const uint64_t *frame, const int64_t place)
{
    const int64_t arguments = frame[ARGUMENTS];
    const uint64_t *const arrays = (const uint64_t *)frame[place < arguments ? ARGUMENTS + 2 : RESULTS + 2];
    return (const uint64_t *)arrays[place < arguments ? place : place - arguments];
}

static int is_of(const struct array *shape, const uint64_t *array)
{
    return (int32_t)array[TYPE] == shape->type && (int64_t)array[RANK] == shape->rank &&
           !memcmp((const void *)array[DIMS], shape->dims, shape->rank * sizeof(int64_t));
}

static int is_for(const struct launch *launch, const uint64_t *frame)
{
    if (!*launch->valid || (int64_t)frame[ARGUMENTS] != launch->arguments || (int64_t)frame[RESULTS] != launch->results)
        return 0;
    for (int64_t place = 0; place < launch->arguments; ++place)
        if (!is_of(&launch->shapes[place], array_of(frame, place)))
            return 0;
    void *context;
    return !current_context(&context) && context == launch->context;
}

/* The address of XLA's stream; 1 if it has none. */
static uint64_t stream_of(const uint64_t *frame)
{
    typedef void *(*function)(uint64_t *);
    const function *const api = (const function *)frame[API];
    uint64_t asked[4] = {sizeof(uint64_t[4]), 0, frame[CONTEXT], 0};
    void *const error = api[STREAM_GET](asked);
    if (!error)
        return asked[3];
    uint64_t refused[3] = {sizeof(uint64_t[3]), 0, (uint64_t)error};
    api[ERROR_DESTROY](refused);
    return 1;
}

static int launched(const struct launch *launch, const uint64_t *frame)
{
    const int64_t arrays = launch->arguments + launch->results;
    uint64_t values[MOST_ARRAYS + MOST_WORDS];
    void *parameters[MOST_ARRAYS + MOST_WORDS];
    for (int64_t place = 0; place < arrays; ++place)
        values[place] = array_of(frame, place)[DATA];
    memcpy(values + arrays, launch->fixed, launch->words * sizeof(uint64_t));
    for (int64_t place = 0; place < arrays + launch->words; ++place)
        parameters[place] = &values[place];
    struct configuration configuration = {.stream = stream_of(frame)};
    memcpy(configuration.geometry, launch->geometry, sizeof launch->geometry);
    return configuration.stream != 1 && !launch_kernel(&configuration, launch->kernel, parameters, 0);
}

static void *handle(const struct handler *handler, uint64_t *frame)
{
    const int known = frame[EXTENSION] ? 0 : __atomic_load_n(&handler->known, __ATOMIC_ACQUIRE);
    for (int place = 0; place < known; ++place)
        if (is_for(&handler->launches[place], frame) && launched(&handler->launches[place], frame))
            return 0;
    return handler->python(frame);
}

#define HANDLERS(make) \
    make(0) make(1) make(2) make(3) make(4) make(5) make(6) make(7) make(8) make(9) make(10) make(11) make(12) make(13) \
    make(14) make(15) make(16) make(17) make(18) make(19) make(20) make(21) make(22) make(23)
#define HANDLER(place) static void *handle_##place(uint64_t *frame) { return handle(&handlers[place], frame); }
#define ADDRESS(place) handle_##place,

static struct handler handlers[24];
HANDLERS(HANDLER)
static void *(*const functions[])(uint64_t *) = {HANDLERS(ADDRESS)};

void xla_begin(void *context, void *launch)
{
    current_context = (int (*)(void **))context;
    launch_kernel = (int (*)(const void *, void *, void **, void **))launch;
}

/* A handler's address; it asks `python` what it does not know. */
void *xla_handler(const int place, void *python)
{
    handlers[place].python = (void *(*)(uint64_t *))python;
    return (void *)functions[place];
}

/* Have a handler launch a kernel; returns 0 if it knows too many. Python's lock is held. */
int xla_remember(const int place, const struct launch *launch)
{
    struct handler *const handler = &handlers[place];
    const int known = handler->known;
    if (known == MOST_LAUNCHES)
        return 0;
    handler->launches[known] = *launch;
    __atomic_store_n(&handler->known, known + 1, __ATOMIC_RELEASE);
    return 1;
}
