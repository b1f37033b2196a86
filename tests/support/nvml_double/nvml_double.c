/* A stand-in for libnvidia-ml.so.1 with as much of NVML as the agent asks of it.
 *
 * The file named by NVML_DOUBLE says what host it pretends to be; it is read at
 * every call, so that a test can change the host while it is being watched:
 *
 *     init=ok | not-loaded | mismatch | hang    what nvmlInit answers
 *     driver=580.95.05                   the kernel module's version
 *     library=580.95.05                  the library's own version
 *     cuda=13000                         what the CUDA driver supports
 *     gpus=8                             how many there are
 *     lost=3                             this GPU answers GPU_IS_LOST
 *     hang=5                             this GPU's memory query never returns
 *     stall=5:nvmlDeviceGetName          this function never returns for this GPU
 *     error=5:nvmlDeviceGetName:999      this function answers this code for this GPU
 *     value=5:throttle:64                a figure of this GPU, by the names used below; * is all
 *     process=2:1234:58390               on GPU 2, pid 1234 holds 58390 MiB (may be repeated)
 *     process=2:1234:58390:1             the same on MIG slice 1 of GPU 2
 *     busy=1                             GPUs with a process show load
 *
 * Memory "used" is the sum of the processes; version 1 of the query adds the
 * driver's reserve, as the real library does.  Figures that nobody sets are those
 * of a healthy part without NVLink and MIG.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MIB (1024ULL * 1024ULL)
#define TOTAL (97887ULL * MIB)
#define RESERVE (615ULL * MIB)
#define MOST_PROCESSES 64
#define MOST_RULES 64
#define MOST_SLICES 7
#define EVERY (-1)

enum {
    SUCCESS = 0,
    INVALID_ARGUMENT = 2,
    NOT_SUPPORTED = 3,
    NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7,
    DRIVER_NOT_LOADED = 9,
    GPU_IS_LOST = 15,
    VERSION_MISMATCH = 18,
};

typedef struct { unsigned gpu, pid; unsigned long long bytes; int slice; } Held;
typedef struct { int gpu; char name[64]; long long number; } Rule;
typedef struct {
    char init[32], driver[32], library[32];
    int gpus, lost, hang, busy, cuda, processes, values, errors, stalls;
    Held held[MOST_PROCESSES];
    Rule value[MOST_RULES], error[MOST_RULES], stall[MOST_RULES];
} Host;
typedef struct { unsigned index; int slice; } *Device; /* slice -1: the whole GPU */
typedef struct { unsigned long long total, free, used; } MemoryV1;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } MemoryV2;
typedef struct { unsigned gpu, memory; } Utilization;
typedef struct {
    unsigned pid;
    unsigned long long bytes;
    unsigned gpu_instance, compute_instance;
} ProcessInfo;

typedef struct { unsigned version; unsigned char cluster[16]; int status; unsigned clique;
                 unsigned char state; unsigned mask; } FabricV2;
typedef struct { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; } Pci;
typedef struct { unsigned field, scope; long long time, latency; int type, code;
                 unsigned long long value; } Field;
typedef struct { unsigned processors, copy, decoders, encoders, jpeg, ofa, gpu_slices,
                 compute_slices; unsigned long long mib; } Attributes;

static struct { unsigned index; int slice; } devices[64], slices[64][MOST_SLICES];

/* "5:name:7" or "*:name:7" or "5:name" */
static void learn(const char *line, const char *key, Rule *rules, int *count)
{
    Rule one = {.number = 0};
    char who[16] = "", format[64];
    snprintf(format, sizeof format, "%s=%%15[^:]:%%63[^:\n]:%%lld", key);
    if (*count < MOST_RULES && sscanf(line, format, who, one.name, &one.number) >= 2) {
        one.gpu = who[0] == '*' ? EVERY : atoi(who);
        rules[(*count)++] = one;
    }
}

static Host host(void)
{
    static Host h;
    h = (Host){.init = "ok", .driver = "580.95.05", .library = "580.95.05", .cuda = 13000,
               .gpus = 8, .lost = -1, .hang = -1};
    const char *path = getenv("NVML_DOUBLE");
    FILE *file = path ? fopen(path, "r") : NULL;
    char line[256];
    while (file && fgets(line, sizeof line, file)) {
        Held one = {.slice = -1};
        sscanf(line, "init=%31s", h.init);
        sscanf(line, "driver=%31s", h.driver);
        sscanf(line, "library=%31s", h.library);
        sscanf(line, "cuda=%d", &h.cuda);
        learn(line, "value", h.value, &h.values);
        learn(line, "error", h.error, &h.errors);
        learn(line, "stall", h.stall, &h.stalls);
        sscanf(line, "gpus=%d", &h.gpus);
        sscanf(line, "lost=%d", &h.lost);
        sscanf(line, "hang=%d", &h.hang);
        sscanf(line, "busy=%d", &h.busy);
        if (h.processes < MOST_PROCESSES &&
            sscanf(line, "process=%u:%u:%llu:%d", &one.gpu, &one.pid, &one.bytes,
                   &one.slice) >= 3) {
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

static int reached_by(const Host *h, Device device, const char *function)
{
    if (opened(h) != SUCCESS)
        return opened(h);
    for (int i = 0; i < h->stalls; i++)
        if ((h->stall[i].gpu == EVERY || h->stall[i].gpu == (int)device->index) &&
            !strcmp(h->stall[i].name, function))
            for (;;)
                pause();
    for (int i = 0; i < h->errors; i++)
        if ((h->error[i].gpu == EVERY || h->error[i].gpu == (int)device->index) &&
            !strcmp(h->error[i].name, function))
            return (int)h->error[i].number;
    return (int)device->index == h->lost ? GPU_IS_LOST : SUCCESS;
}
#define reached(h, device) reached_by(h, device, __func__)

/* What the last line about it says; else the healthy figure. */
static long long figure(const Host *h, Device device, const char *name, long long healthy)
{
    for (int i = h->values - 1; i >= 0; i--)
        if ((h->value[i].gpu == EVERY || h->value[i].gpu == (int)device->index) &&
            !strcmp(h->value[i].name, name))
            return h->value[i].number;
    return healthy;
}

static int slice_count(const Host *h, Device device)
{
    return figure(h, device, "mig", 0) == 1 ? (int)figure(h, device, "slices", 0) : 0;
}

static unsigned long long total(const Host *h, Device device)
{
    if (device->slice >= 0)
        return (unsigned long long)figure(h, device, "slice_mib", 18000) * MIB;
    return (unsigned long long)figure(h, device, "memory_total", (long long)TOTAL);
}

static unsigned long long used(const Host *h, Device device)
{
    unsigned long long sum = 0;
    for (int i = 0; i < h->processes; i++)
        if (h->held[i].gpu == device->index &&
            (device->slice < 0 || h->held[i].slice == device->slice))
            sum += h->held[i].bytes;
    return device->slice < 0 ? (unsigned long long)figure(h, device, "memory_used", (long long)sum)
                             : sum;
}

static int working(const Host *h, Device device)
{
    return h->busy && used(h, device) > 0;
}

int nvmlInitWithFlags(unsigned flags)
{
    (void)flags;
    Host h = host();
    while (!strcmp(h.init, "hang"))
        pause();
    return opened(&h);
}
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
    Host h = host();
    snprintf(out, size, "%s", h.driver);
    return opened(&h);
}

int nvmlSystemGetNVMLVersion(char *out, unsigned size)
{
    Host h = host();
    snprintf(out, size, "13.%s", h.library);
    return SUCCESS; /* the one question that needs no open library */
}

int nvmlSystemGetCudaDriverVersion(int *out) { Host h = host(); *out = h.cuda; return SUCCESS; }
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
    devices[index].slice = -1;
    *out = (Device)&devices[index];
    return reached(&h, *out);
}

int nvmlDeviceGetIndex(Device device, unsigned *out) { *out = device->index; return SUCCESS; }

int nvmlDeviceGetUUID(Device device, char *out, unsigned size)
{
    Host h = host();
    if (device->slice >= 0)
        snprintf(out, size, "MIG-5131a7ed-0000-4000-8000-%06u%06d", device->index, device->slice);
    else
        snprintf(out, size, "GPU-5131a7ed-0000-4000-8000-%012u", device->index);
    return reached(&h, device);
}

int nvmlDeviceGetName(Device device, char *out, unsigned size)
{
    Host h = host();
    if (device->slice >= 0)
        snprintf(out, size, "SIMULATED RTX PRO 6000 MIG 1g.18gb");
    else
        snprintf(out, size, "SIMULATED RTX PRO 6000");
    return reached(&h, device);
}

int nvmlDeviceGetMemoryInfo(Device device, MemoryV1 *out)
{
    Host h = host();
    while ((int)device->index == h.hang)
        pause();
    out->total = total(&h, device);
    out->used = used(&h, device) + RESERVE;
    out->free = out->total - out->used;
    return reached(&h, device);
}

int nvmlDeviceGetMemoryInfo_v2(Device device, MemoryV2 *out)
{
    Host h = host();
    while ((int)device->index == h.hang)
        pause();
    out->total = total(&h, device);
    out->reserved = RESERVE;
    out->used = used(&h, device);
    out->free = out->total - RESERVE - out->used;
    return reached(&h, device);
}

int nvmlDeviceGetUtilizationRates(Device device, Utilization *out)
{
    Host h = host();
    out->gpu = working(&h, device) ? 87 + device->index : 0;
    out->memory = out->gpu / 2;
    out->gpu = (unsigned)figure(&h, device, "utilization", out->gpu);
    return reached(&h, device);
}

int nvmlDeviceGetTemperature(Device device, unsigned sensor, unsigned *out)
{
    Host h = host();
    (void)sensor;
    *out = (unsigned)figure(&h, device, "temperature",
                            (working(&h, device) ? 61 : 31) + (int)device->index);
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
    *milliwatt = (unsigned)figure(&h, device, "power_limit", 600000);
    return reached(&h, device);
}

int nvmlDeviceGetComputeRunningProcesses_v3(Device device, unsigned *count, ProcessInfo *out)
{
    Host h = host();
    unsigned found = 0;
    if (reached(&h, device) != SUCCESS)
        return reached(&h, device);
    for (int i = 0; i < h.processes; i++) {
        if (h.held[i].gpu != device->index ||
            (device->slice >= 0 && h.held[i].slice != device->slice))
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

/* One number of a GPU: NVML's name, the name in the file, what a healthy GPU says. */
#define NUMBER(function, name, healthy)                                   \
    int function(Device device, unsigned *out)                            \
    {                                                                     \
        Host h = host();                                                  \
        *out = (unsigned)figure(&h, device, name, healthy);               \
        return reached(&h, device);                                       \
    }

NUMBER(nvmlDeviceGetPersistenceMode, "persistence", 1)
NUMBER(nvmlDeviceGetComputeMode, "compute_mode", 0)
NUMBER(nvmlDeviceGetRetiredPagesPendingStatus, "retired_pending", 0)
NUMBER(nvmlDeviceGetPowerManagementDefaultLimit, "power_default", 600000)
NUMBER(nvmlDeviceGetCurrPcieLinkGeneration, "pcie_gen", 5)
NUMBER(nvmlDeviceGetMaxPcieLinkGeneration, "pcie_gen_max", 5)
NUMBER(nvmlDeviceGetCurrPcieLinkWidth, "pcie_width", 16)
NUMBER(nvmlDeviceGetMaxPcieLinkWidth, "pcie_width_max", 16)

int nvmlDeviceGetTemperatureThreshold(Device device, int which, unsigned *out)
{
    Host h = host();
    *out = (unsigned)figure(&h, device, which == 0 ? "shutdown" : "slowdown", which == 0 ? 95 : 90);
    return reached(&h, device);
}

int nvmlDeviceGetPciInfo_v3(Device device, Pci *out)
{
    Host h = host();
    memset(out, 0, sizeof *out);
    out->bus = 0x10 + device->index;
    snprintf(out->bus_id, sizeof out->bus_id, "00000000:%02X:00.0", out->bus);
    snprintf(out->legacy, sizeof out->legacy, "0000:%02X:00.0", out->bus);
    return reached(&h, device);
}

int nvmlDeviceGetEccMode(Device device, unsigned *current, unsigned *pending)
{
    Host h = host();
    *current = (unsigned)figure(&h, device, "ecc_mode", 1);
    *pending = (unsigned)figure(&h, device, "ecc_pending", *current);
    return reached(&h, device);
}

int nvmlDeviceGetTotalEccErrors(Device device, int kind, int counter, unsigned long long *out)
{
    Host h = host();
    (void)counter;
    *out = (unsigned long long)(kind ? figure(&h, device, "ecc_uncorrected", 0) : 0);
    return reached(&h, device);
}

int nvmlDeviceGetRemappedRows(Device device, unsigned *corrected, unsigned *uncorrected,
                              unsigned *pending, unsigned *failed)
{
    Host h = host();
    *corrected = 0;
    *uncorrected = (unsigned)figure(&h, device, "remapped", 0);
    *pending = (unsigned)figure(&h, device, "remap_pending", 0);
    *failed = (unsigned)figure(&h, device, "remap_failed", 0);
    return reached(&h, device);
}

int nvmlDeviceGetCurrentClocksEventReasons(Device device, unsigned long long *out)
{
    Host h = host();
    *out = (unsigned long long)figure(&h, device, "throttle", 1);
    return reached(&h, device);
}

int nvmlDeviceGetFieldValues(Device device, int count, Field *fields)
{
    enum { LINK_COUNT = 91, RECOVERY_ACTION = 230, UNSIGNED_INT = 1 };
    Host h = host();
    for (int i = 0; i < count; i++) {
        fields[i].type = UNSIGNED_INT;
        fields[i].code = SUCCESS;
        if (fields[i].field == LINK_COUNT)
            fields[i].value = (unsigned)figure(&h, device, "links", 0);
        else if (fields[i].field == RECOVERY_ACTION)
            fields[i].value = (unsigned)figure(&h, device, "recovery", 0);
        else
            fields[i].code = NOT_SUPPORTED;
    }
    return reached(&h, device);
}

int nvmlDeviceGetNvLinkState(Device device, unsigned link, unsigned *active)
{
    Host h = host();
    if ((long long)link >= figure(&h, device, "links", 0))
        return INVALID_ARGUMENT;
    *active = (long long)link >= figure(&h, device, "links_down", 0);
    return reached(&h, device);
}

int nvmlDeviceGetNvLinkRemoteDeviceType(Device device, unsigned link, unsigned *type)
{
    Host h = host();
    (void)link;
    *type = (unsigned)figure(&h, device, "link_peer", 2);
    return reached(&h, device);
}

/* The state is one byte, and what follows it is not the library's to write. */
int nvmlDeviceGetGpuFabricInfoV(Device device, FabricV2 *out)
{
    Host h = host();
    out->state = (unsigned char)figure(&h, device, "fabric", 0);
    out->status = (int)figure(&h, device, "fabric_status", 0);
    out->mask = (unsigned)figure(&h, device, "fabric_mask", 0);
    return reached(&h, device);
}

int nvmlDeviceGetTopologyCommonAncestor(Device one, Device other, unsigned *level)
{
    Host h = host();
    *level = (unsigned)figure(&h, one, "level", 30);
    return reached(&h, other) != SUCCESS ? reached(&h, other) : reached(&h, one);
}

int nvmlDeviceGetP2PStatus(Device one, Device other, int index, unsigned *status)
{
    Host h = host();
    (void)index;
    *status = (unsigned)figure(&h, one, "peer", figure(&h, one, "links", 0) ? 0 : 5);
    return reached(&h, other) != SUCCESS ? reached(&h, other) : reached(&h, one);
}

int nvmlDeviceGetMigMode(Device device, unsigned *current, unsigned *pending)
{
    Host h = host();
    *current = (unsigned)figure(&h, device, "mig", 0);
    *pending = (unsigned)figure(&h, device, "mig_pending", *current);
    if (reached(&h, device) != SUCCESS)
        return reached(&h, device);
    return figure(&h, device, "mig", EVERY) == EVERY ? NOT_SUPPORTED : SUCCESS;
}

int nvmlDeviceGetMaxMigDeviceCount(Device device, unsigned *count)
{
    Host h = host();
    *count = MOST_SLICES;
    return reached(&h, device);
}

int nvmlDeviceGetMigDeviceHandleByIndex(Device device, unsigned index, Device *out)
{
    Host h = host();
    if (index >= MOST_SLICES || (int)index >= slice_count(&h, device))
        return NOT_FOUND;
    slices[device->index][index].index = device->index;
    slices[device->index][index].slice = (int)index;
    *out = (Device)&slices[device->index][index];
    return reached(&h, device);
}
