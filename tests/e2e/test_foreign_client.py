#!/usr/bin/python3
"""A client that only has the .proto files: it finds the services, plans, trains, samples, saves and
loads over gRPC, with stubs that protoc makes."""
import math
import os

import grpc
import harness
from harness import Daemon, Session, text_tokens
from memferry.v1 import hardware_pb2, plan_pb2, training_pb2
from grpc.health.v1 import health_pb2, health_pb2_grpc
from grpc.reflection.v1 import reflection_pb2, reflection_pb2_grpc
from grpc.reflection.v1alpha import reflection_pb2 as alpha_pb2
from grpc.reflection.v1alpha import reflection_pb2_grpc as alpha_pb2_grpc

SERVICES = ["HardwareService", "PlanService", "ProfileService", "TrainingService"]
PARAMS = 125248  # of tiny-llama
# Master weights and two moments in fp32, weights and gradients in bf16: without activations.
FULL_STATE_BYTES = PARAMS * 16
BUDGET_BYTES = 1 << 20


class ForeignClient(harness.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.daemon = Daemon()

    @classmethod
    def tearDownClass(cls):
        assert cls.daemon.stop() == 0, cls.daemon.text()

    def open(self, **more):
        session = Session(self.daemon, **more)
        self.addCleanup(session.close)
        return session

    def test_reflection_lists_the_services(self):
        for pb2, pb2_grpc in ((reflection_pb2, reflection_pb2_grpc), (alpha_pb2, alpha_pb2_grpc)):
            stub = pb2_grpc.ServerReflectionStub(self.daemon.channel)
            requests = [pb2.ServerReflectionRequest(list_services=""),
                        pb2.ServerReflectionRequest(
                            file_containing_symbol="memferry.v1.TrainingService")]
            answers = list(stub.ServerReflectionInfo(iter(requests), timeout=20))
            names = [service.name for service in answers[0].list_services_response.service]
            for service in SERVICES:
                self.assertIn("memferry.v1." + service, names)
            self.assertIn("grpc.health.v1.Health", names)
            self.assertTrue(answers[1].file_descriptor_response.file_descriptor_proto)

    def test_health(self):
        stub = health_pb2_grpc.HealthStub(self.daemon.channel)
        for service in ["", "memferry.v1.TrainingService"]:
            answer = stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=20)
            self.assertEqual(answer.status, health_pb2.HealthCheckResponse.SERVING)
        self.fails("NOT_FOUND", stub.Check, health_pb2.HealthCheckRequest(service="nothing"))

    def test_unknown_method(self):
        call = self.daemon.channel.unary_unary("/memferry.v1.PlanService/Nothing")
        self.fails("UNIMPLEMENTED", call, b"")

    def test_hardware(self):
        hardware = self.daemon.hardware.GetHardware(hardware_pb2.GetHardwareRequest()).hardware
        self.assertEqual([device.kind for device in hardware.devices], ["host"])
        self.assertFalse(hardware.devices[0].link_emulated)

    def test_plan_of_a_unit_list(self):
        units = [plan_pb2.UnitShape(name=f"block{i}.mlp", block=i, rows=128, columns=64)
                 for i in range(4)]
        request = plan_pb2.GetPlanRequest(
            model=plan_pb2.Model(units=plan_pb2.UnitList(units=units)),
            workload=plan_pb2.Workload(micro_batch=1, seq_len=16))
        for effort, how in ((plan_pb2.EFFORT_ESTIMATE, "estimated"),
                            (plan_pb2.EFFORT_MEASURE, "measured"),
                            (plan_pb2.EFFORT_CACHED, "cached")):
            request.effort = effort
            answer = self.daemon.plans.GetPlan(request, timeout=60)
            self.assertEqual(answer.how, how)
            self.assertEqual(answer.miss == "", how == "cached")
            self.assertEqual([unit.name for unit in answer.plan.units],
                             [unit.name for unit in units])
        # Such a model is the client's to run.
        with self.assertRaises(grpc.RpcError):
            Session(self.daemon, model=request.model, seq_len=16)

    def test_training_below_the_full_state(self):
        self.assertLess(BUDGET_BYTES, FULL_STATE_BYTES)
        session = self.open(budget=BUDGET_BYTES, accumulation=2)
        self.assertEqual((session.session.state, session.next), ("ready", 1))
        self.assertEqual(session.session.params, PARAMS)
        self.assertLessEqual(session.session.device_bytes, BUDGET_BYTES)
        plan = self.daemon.plans.ShowPlan(
            plan_pb2.ShowPlanRequest(id=session.session.plan_id)).plan
        self.assertEqual(session.session.device_bytes, plan.prediction.device_peak_bytes)
        self.assertEqual(session.session.host_bytes, plan.prediction.host_peak_bytes)
        losses = []
        for step in range(20):
            first = text_tokens(session.tokens_per_batch, 64 * step)
            second = text_tokens(session.tokens_per_batch, 64 * step + 7)
            calls = [session.forward_backward(first), session.forward_backward(second),
                     session.optim_step()]
            answers = [call.result() for call in calls]
            sums = sum(answer.loss_sum for answer in answers[:2])
            count = sum(answer.token_count for answer in answers[:2])
            self.assertEqual(answers[2].step, step + 1)
            self.assertEqual(answers[2].token_count, count)
            self.assertAlmostEqual(answers[2].loss, sums / count, places=9)
            self.assertGreater(answers[2].grad_norm, 0)
            losses.append(answers[2].loss)
        self.assertLess(losses[-1], losses[0] - 1, losses)
        now = session.get()
        self.assertEqual((now.step, now.next_seq_id), (20, 61))
        self.assertEqual(now.loss, losses[-1])

    def test_logprobs_sum_to_the_loss(self):
        session = self.open()
        tokens = text_tokens(session.tokens_per_batch)
        labels = tokens[1:] + [-100]
        labels[5] = -100
        answer = session.forward(tokens, labels)
        self.assertEqual(answer.token_count, len(tokens) - 2)
        self.assertEqual(len(answer.logprobs), len(tokens))
        self.assertEqual((answer.logprobs[5], answer.logprobs[-1]), (0, 0))
        self.assertLess(abs(answer.loss_sum + math.fsum(answer.logprobs)),
                        1e-5 * answer.loss_sum)
        self.assertAlmostEqual(answer.loss, answer.loss_sum / answer.token_count, places=12)
        # Looking changes nothing, and the gradient's forward is the same one.
        again = session.forward_backward(tokens, labels).result()
        self.assertEqual(again.loss_sum, answer.loss_sum)

    def test_sample(self):
        session = self.open()
        request = {"prompt": text_tokens(8), "max_tokens": 12}
        greedy = session.send("Sample", **request).result().tokens
        self.assertEqual(len(greedy), 12)
        self.assertTrue(all(0 <= token < 256 for token in greedy))
        self.assertEqual(session.send("Sample", **request).result().tokens, greedy)
        hot = [session.send("Sample", temperature=1.0, seed=seed, **request).result().tokens
               for seed in (1, 1, 2)]
        self.assertEqual(hot[0], hot[1])
        self.assertNotEqual(hot[0], hot[2])

    def test_save_and_load(self):
        first = self.open(budget=BUDGET_BYTES, seed=3)
        for step in range(3):
            first.step(text_tokens(first.tokens_per_batch, step))
        path = os.path.join(harness.FOLDER, "saved")
        self.assertEqual(first.save(path).path, path)
        for name in ("config.json", "model.safetensors", "optimizer.safetensors", "DONE"):
            self.assertTrue(os.path.exists(os.path.join(path, name)), name)
        self.assertFalse(os.path.exists(path + ".partial"))
        self.fails("ALREADY_EXISTS", first.save, path)
        # Another seed, another plan, the same bits from here on.
        second = self.open(seed=9, strategy=plan_pb2.STRATEGY_RESIDENT)
        loaded = second.send("LoadState", path=path).result()
        self.assertTrue(loaded.optimizer_loaded)
        self.assertEqual(loaded.step, 3)
        tokens = text_tokens(first.tokens_per_batch, 3)
        for _ in range(2):
            ours, theirs = first.step(tokens), second.step(tokens)
            self.assertEqual((ours.step, ours.loss, ours.grad_norm),
                             (theirs.step, theirs.loss, theirs.grad_norm))

    def test_weights_only(self):
        session = self.open()
        session.step(text_tokens(session.tokens_per_batch))
        path = os.path.join(harness.FOLDER, "weights")
        session.save(path, weights_only=True)
        self.assertFalse(os.path.exists(os.path.join(path, "optimizer.safetensors")))
        loaded = session.send("LoadState", path=path).result()
        self.assertEqual((loaded.step, loaded.optimizer_loaded), (0, False))

    def test_past_sessions_are_listed(self):
        session = Session(self.daemon)
        session.step(text_tokens(session.tokens_per_batch))
        listed = self.daemon.training.ListSessions(training_pb2.ListSessionsRequest()).sessions
        self.assertIn((session.id, "ready"), [(s.id, s.state) for s in listed])
        session.close()
        listed = self.daemon.training.ListSessions(training_pb2.ListSessionsRequest()).sessions
        self.assertNotIn(session.id, [s.id for s in listed])
        past = self.daemon.training.ListSessions(
            training_pb2.ListSessionsRequest(past=True)).sessions
        found = [s for s in past if s.id == session.id]
        self.assertEqual([(s.state, s.step, s.model_name) for s in found],
                         [("closed", 1, "tiny-llama")])
        self.fails("NOT_FOUND", session.forward, [0] * session.tokens_per_batch,
                   reason="SESSION_NOT_FOUND")


if __name__ == "__main__":
    harness.main()
