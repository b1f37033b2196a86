/* A stand-in for libnvidia-ml.so.1 with as much of NVML as the agent asks of it.
 *
 * The file named by NVML_DOUBLE says what host it pretends to be; it is read at
 * every call, so that a test can change the host while it is being watched:
 *
 *     init=ok | not-loaded | mismatch    what nvmlInit answers
 *     gpus=8                             how many there are
 *     lost=3                             this GPU answers GPU_IS_LOST
 *     hang=5                             this GPU's memory query never returns
 *     process=2:1234:58390               on GPU 2, pid 1234 holds 58390 MiB (may be repeated)
 *     busy=1                             GPUs with a process show load
 *
 * Memory "used" is the sum of the processes; version 1 of the query adds the
 * driver's reserve, as the real library does.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MIB (1024ULL * 1024ULL)
#define TOTAL (97887ULL * MIB)
#define RESERVE (615ULL * MIB)
#define MOST_PROCESSES 64

enum {
    SUCCESS = 0,
    INVALID_ARGUMENT = 2,
    NOT_SUPPORTED = 3,
    INSUFFICIENT_SIZE = 7,
    DRIVER_NOT_LOADED = 9,
    GPU_IS_LOST = 15,
    VERSION_MISMATCH = 18,
};

typedef struct { unsigned gpu, pid; unsigned long long bytes; } Held;
typedef struct {
    char init[32];
    int gpus, lost, hang, busy, processes;
    Held held[MOST_PROCESSES];
} Host;
typedef struct { unsigned index; } *Device;
typedef struct { unsigned long long total, free, used; } MemoryV1;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } MemoryV2;
typedef struct { unsigned gpu, memory; } Utilization;
typedef struct {
    unsigned pid;
    unsigned long long bytes;
    unsigned gpu_instance, compute_instance;
} ProcessInfo;

static struct { unsigned index; } devices[64];

static Host host(void)
{
    Host h = {.init = "ok", .gpus = 8, .lost = -1, .hang = -1};
    const char *path = getenv("NVML_DOUBLE");
    FILE *file = path ? fopen(path, "r") : NULL;
    char line[256];
    while (file && fgets(line, sizeof line, file)) {
        Held one;
        sscanf(line, "init=%31s", h.init);
        sscanf(line, "gpus=%d", &h.gpus);
        sscanf(line, "lost=%d", &h.lost);
        sscanf(line, "hang=%d", &h.hang);
        sscanf(line, "busy=%d", &h.busy);
        if (h.processes < MOST_PROCESSES &&
            sscanf(line, "process=%u:%u:%llu", &one.gpu, &one.pid, &one.bytes) == 3) {
            one.bytes *= MIB;
            h.held[h.processes++] = one;
        }
    }
    if (file)
        fclose(file);
    if (h.gpus > 64)
        h.gpus = 64;
    return h;
}

static int opened(const Host *h)
{
    if (!strcmp(h->init, "not-loaded"))
        return DRIVER_NOT_LOADED;
    if (!strcmp(h->init, "mismatch"))
        return VERSION_MISMATCH;
    return SUCCESS;
}

static int reached(const Host *h, Device device)
{
    if (opened(h) != SUCCESS)
        return opened(h);
    return (int)device->index == h->lost ? GPU_IS_LOST : SUCCESS;
}

static unsigned long long used(const Host *h, Device device)
{
    unsigned long long sum = 0;
    for (int i = 0; i < h->processes; i++)
        if (h->held[i].gpu == device->index)
            sum += h->held[i].bytes;
    return sum;
}

static int working(const Host *h, Device device)
{
    return h->busy && used(h, device) > 0;
}

int nvmlInitWithFlags(unsigned flags) { (void)flags; Host h = host(); return opened(&h); }
int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
int nvmlShutdown(void) { return SUCCESS; }

const char *nvmlErrorString(int code)
{
    switch (code) {
    case SUCCESS: return "Success";
    case DRIVER_NOT_LOADED: return "Driver Not Loaded";
    case GPU_IS_LOST: return "GPU is lost";
    case VERSION_MISMATCH: return "Driver/library version mismatch";
    default: return "Another error of the double";
    }
}

int nvmlSystemGetDriverVersion(char *out, unsigned size)
{
    snprintf(out, size, "580.95.05");
    return SUCCESS;
}

int nvmlSystemGetNVMLVersion(char *out, unsigned size)
{
    snprintf(out, size, "13.580.95.05");
    return SUCCESS;
}

int nvmlSystemGetCudaDriverVersion(int *out) { *out = 13000; return SUCCESS; }
int nvmlSystemGetCudaDriverVersion_v2(int *out) { return nvmlSystemGetCudaDriverVersion(out); }

int nvmlDeviceGetCount_v2(unsigned *out)
{
    Host h = host();
    *out = (unsigned)h.gpus;
    return opened(&h);
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, Device *out)
{
    Host h = host();
    if (opened(&h) != SUCCESS)
        return opened(&h);
    if ((int)index >= h.gpus)
        return INVALID_ARGUMENT;
    devices[index].index = index;
    *out = (Device)&devices[index];
    return reached(&h, *out);
}

int nvmlDeviceGetIndex(Device device, unsigned *out) { *out = device->index; return SUCCESS; }

int nvmlDeviceGetUUID(Device device, char *out, unsigned size)
{
    Host h = host();
    snprintf(out, size, "GPU-5131a7ed-0000-4000-8000-%012u", device->index);
    return reached(&h, device);
}

int nvmlDeviceGetName(Device device, char *out, unsigned size)
{
    Host h = host();
    snprintf(out, size, "SIMULATED RTX PRO 6000");
    return reached(&h, device);
}

int nvmlDeviceGetMemoryInfo(Device device, MemoryV1 *out)
{
    Host h = host();
    while ((int)device->index == h.hang)
        pause();
    out->total = TOTAL;
    out->used = used(&h, device) + RESERVE;
    out->free = TOTAL - out->used;
    return reached(&h, device);
}

int nvmlDeviceGetMemoryInfo_v2(Device device, MemoryV2 *out)
{
    Host h = host();
    while ((int)device->index == h.hang)
        pause();
    out->total = TOTAL;
    out->reserved = RESERVE;
    out->used = used(&h, device);
    out->free = TOTAL - RESERVE - out->used;
    return reached(&h, device);
}

int nvmlDeviceGetUtilizationRates(Device device, Utilization *out)
{
    Host h = host();
    out->gpu = working(&h, device) ? 87 + device->index : 0;
    out->memory = out->gpu / 2;
    return reached(&h, device);
}

int nvmlDeviceGetTemperature(Device device, unsigned sensor, unsigned *out)
{
    Host h = host();
    (void)sensor;
    *out = (working(&h, device) ? 61 : 31) + device->index;
    return reached(&h, device);
}

int nvmlDeviceGetPowerUsage(Device device, unsigned *milliwatt)
{
    Host h = host();
    *milliwatt = (working(&h, device) ? 412000 : 21000) + 1000 * device->index;
    return reached(&h, device);
}

int nvmlDeviceGetEnforcedPowerLimit(Device device, unsigned *milliwatt)
{
    Host h = host();
    *milliwatt = 600000;
    return reached(&h, device);
}

int nvmlDeviceGetComputeRunningProcesses_v3(Device device, unsigned *count, ProcessInfo *out)
{
    Host h = host();
    unsigned found = 0;
    if (reached(&h, device) != SUCCESS)
        return reached(&h, device);
    for (int i = 0; i < h.processes; i++) {
        if (h.held[i].gpu != device->index)
            continue;
        if (out && found < *count)
            out[found] = (ProcessInfo){h.held[i].pid, h.held[i].bytes, ~0u, ~0u};
        found++;
    }
    int fits = out ? found <= *count : found == 0;
    *count = found;
    return fits ? SUCCESS : INSUFFICIENT_SIZE;
}

int nvmlDeviceGetGraphicsRunningProcesses_v3(Device device, unsigned *count, ProcessInfo *out)
{
    (void)device;
    (void)out;
    *count = 0;
    return SUCCESS;
}

int nvmlDeviceGetPersistenceMode(Device device, unsigned *mode)
{
    Host h = host();
    *mode = 1;
    return reached(&h, device);
}

int nvmlDeviceGetComputeMode(Device device, unsigned *mode)
{
    Host h = host();
    *mode = 0;
    return reached(&h, device);
}

int nvmlDeviceGetMigMode(Device device, unsigned *current, unsigned *pending)
{
    (void)device;
    *current = *pending = 0;
    return NOT_SUPPORTED;
}
